"""Workers that a loader starts anew each epoch."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_diagnose import FACTS, LOADER, phases, step

from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.findings import workers_restart
from hotlap.diagnose.findings._base import Measured
from hotlap.diagnose.verdict import verdict
from hotlap.records.run import Facts, LoaderFacts, Step
from made_runs import folder_of

RESTARTS = msgspec.structs.replace(
    LOADER, workers=2, batches=120, starts=3, restarting_ms=20.0, refilling_ms=1804.0, context="spawn",
    loop=("/w/train.py", 19, "main"),
)  # fmt: skip


def facts_of(loader: LoaderFacts) -> Facts:
    return msgspec.structs.replace(FACTS, loaders=(loader,))


def measured(run_ms: float = 2000.0, **changes: Any) -> Measured:
    loader = msgspec.structs.replace(RESTARTS, **changes)
    return Measured(16.0, phases(data=1.0, forward=1.0), None, None, facts_of(loader), run_ms=run_ms)


def epochs(thin: bool = False) -> list[Step]:
    """120 steps of 2 ms, of which those that begin the second and third epoch wait 912 ms longer."""
    lines = [step(at, phases(data=912.5 if at in {40, 80} else 0.5, forward=1.5)) for at in range(120)]
    return [msgspec.structs.replace(one, phases=None) if thin and one.step > 72 else one for one in lines]


@pytest.mark.parametrize("thin", [False, True])
def test_restarts_are_named_beside_what_the_other_steps_do(thin: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, (epochs(thin), facts_of(RESTARTS)))
    found = diagnose(folder)
    first, *others = found.findings
    assert (found.bound, first.id, first.levers) == ("input", "workers-restart", ("loader-workers",))
    assert first.title == "workers restart each epoch" and "persistent_workers" in first.instead
    run_ms = 118 * 2.0 + 2 * 914.0
    assert first.share == pytest.approx((1824 - 2 * 2 * (run_ms - 1824) / 120) / run_ms)
    assert first.where is not None and (first.where.file, first.where.line) == ("/w/train.py", 19)
    assert "2 restarts of 2 workers, each 10.0 ms to start, 902 ms until their first batch" in first.evidence
    assert first.named and {one.id: one.share for one in others} == {"compute": 0.75, "input": 0.25}, "of a step"
    of_the_loop = verdict(folder)
    assert (of_the_loop.bound, of_the_loop.findings[0].id) == ("input", "workers-restart")
    others, rest = [*of_the_loop.findings[1:]], 1 - first.share
    assert {one.id: one.share for one in others} == pytest.approx({"compute": 0.75 * rest, "input": 0.25 * rest})
    assert found.phases == phases(data=0.5, forward=1.5)


def test_finding_workers_restart() -> None:
    found = workers_restart.find(measured())
    assert found is not None and "import everything again" in found.why
    forked = workers_restart.find(measured(context="fork", loop=None))
    assert forked is not None and "import everything" not in forked.why
    assert forked.where is not None and forked.where.file == LOADER.file
    assert workers_restart.find(measured(starts=1, restarting_ms=0.0, refilling_ms=0.0)) is None
    assert workers_restart.find(measured(run_ms=0.0)) is None, "not known"
    assert workers_restart.find(measured(run_ms=200_000.0)) is None, "1% of the run"


def test_a_first_batch_that_is_long_to_make_is_no_restart() -> None:
    """Workers that make one in 100 ms, and so 2 of them one each 50 ms: those that live take as long for it."""
    slow = measured(run_ms=120 * 50.0, restarting_ms=20.0, refilling_ms=200.0)
    assert workers_restart.find(slow) is None


def test_their_share_is_of_the_loops_own_pace(tmp_path: Path) -> None:
    """Warm-up, and steps that were profiled, take no part of it; nor is it more than all where no steady step has one.

    20 steps of 2 ms an epoch, 3 epochs, 60 ms for each restart.
    """
    loader = msgspec.structs.replace(RESTARTS, batches=60, restarting_ms=120.0, refilling_ms=0.0)
    lines = [step(at, phases(data=60.5 if at in {20, 40} else 0.5, forward=1.5)) for at in range(60)]
    slow = msgspec.structs.replace(lines[0], wall_ms=9000.0)
    probed = [msgspec.structs.replace(one, probe=40 <= one.step < 50) for one in lines[1:]]
    for name, run in (("all", lines), ("slow", [slow, *probed])):
        first, *_ = diagnose(folder_of(tmp_path / name, (run, facts_of(loader)))).findings
        assert (first.id, first.share) == ("workers-restart", pytest.approx(120 / 240))
