"""A lever that leaves itself out of a run that it was to be in: of the confirmation, or of leave-one-out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine import LOSSES, FakeLever, Machine, Tune, Uses, factors, kept, resumed, search, with_noise

from hotlap.records.tune import Trial
from hotlap.tune.evidence import Evidence
from hotlap.tune.search import Search
from hotlap.tune.state import Asked

GRAPHS = [FakeLever("graphs", 0.5), FakeLever("compile", 0.4), FakeLever("tf32", 0.3)]


def leaves_after(runs: int) -> Callable[[Uses], dict[str, str]]:
    """`graphs` is in so many runs, and leaves itself out of all later ones."""
    seen: list[int] = []

    def left_out(uses: Uses) -> dict[str, str]:
        seen.extend([1] if "graphs" in uses else [])
        return {"graphs": "its replay differs"} if "graphs" in uses and len(seen) > runs else {}

    return left_out


@pytest.mark.parametrize(("runs", "were_in"), [(1, True), (1, False), (2, True), (3, True)])
def test_a_lever_that_leaves_itself_out_of_the_confirmation_is_dropped_alone(
    tune: Tune, runs: int, were_in: bool
) -> None:
    """A GPT on an H100: a recording was one rounding apart in the last of four runs, and all of 9.0x was dropped."""
    step_ms = factors(graphs=0.9, compile=0.5, tf32=0.8)
    found, _ = tune(GRAPHS, step_ms, left_out=leaves_after(runs), were_in=were_in, budget=150.0)
    assert sorted(kept(found)) == ["compile", "tf32"] and found.gain and found.pairs >= 2
    assert found.speedup == pytest.approx(1 / (0.5 * 0.8)), "no run with it counts"
    assert found.dropped["graphs"].why.endswith("its replay differs")


def test_what_was_told_of_the_larger_set_is_not_told_of_what_is_left(tmp_path: Path) -> None:
    """Whenever the budget ends: a speed-up is one of the levers that are kept."""
    told = 0
    for budget in range(60, 200, 10):
        for runs in range(1, 6):
            left_out = leaves_after(runs)
            step_ms = with_noise(factors(graphs=0.2, compile=0.9, tf32=0.9), 0.08)
            folder = tmp_path / f"{budget}-{runs}"
            found, _ = search(folder, GRAPHS, step_ms, left_out=left_out, budget=float(budget))
            if found.speedup and "graphs" in found.dropped and not any("×" in d.why for d in found.dropped.values()):
                told += 1
                assert found.speedup == pytest.approx(1 / 0.81, rel=0.3), (budget, runs)
            assert found.speedup is None or found.pairs >= 2
    assert told > 0


def test_a_run_of_an_earlier_session_is_no_partner_of_one_that_a_lever_left(tmp_path: Path) -> None:
    """The machine is half as fast on the next day."""
    step_ms = factors(graphs=0.7, compile=0.9, tf32=0.9)
    for budget in range(50, 140, 2):
        found, before = search(tmp_path / str(budget), GRAPHS, with_noise(step_ms, 0.02), budget=float(budget))
        if found.pairs == 1:
            break
    assert found.pairs == 1
    slow = with_noise(lambda uses: 2 * step_ms(uses), 0.02)
    found, _ = search(tmp_path / "next", GRAPHS, slow, budget=200.0, left_out=leaves_after(0), **resumed(before))
    assert found.gain and sorted(kept(found)) == ["compile", "tf32"]
    assert found.speedup == pytest.approx(1 / 0.81, rel=0.05)
    assert not any("earlier session" in said for said in found.reused)


def test_parity_is_not_judged_by_a_run_whose_first_steps_had_a_lever_that_left(tmp_path: Path) -> None:
    class Steps(Machine):
        def evidence(self, trial: Trial) -> Evidence:
            had = "graphs" in {use.name for use in trial.asked}
            return Evidence(tuple((x * 1.001 if had else x,) for (x,) in LOSSES))

    levers = [FakeLever("graphs", 0.5, risk="numeric", tolerance=0.02), *GRAPHS[1:]]
    machine = Steps(factors(graphs=0.9, compile=0.5, tf32=0.8), tmp_path, left_out=leaves_after(1))
    known = {lever.name: lever for lever in levers}
    found = Search(machine, 300.0, Asked(), known, machine.monotonic).run()  # type: ignore[arg-type]
    assert found.gain and sorted(kept(found)) == ["compile", "tf32"]


def test_a_resumed_tune_goes_on_with_what_was_left(tmp_path: Path) -> None:
    step_ms = factors(graphs=0.97, compile=0.8, tf32=0.9)
    for budget in range(60, 140, 2):
        settings: dict[str, Any] = {"budget": float(budget), "left_out": leaves_after(1)}
        found, before = search(tmp_path / str(budget), GRAPHS, with_noise(step_ms, 0.06), **settings)
        if "resuming" in found.not_done and any(one.left_out for one in before.done) and found.pairs:
            break
    assert found.pairs == 1 and sorted(use.name for use in before.done[-1].levers) in ([], ["compile", "tf32"])
    again = {"left_out": lambda uses: {}, "budget": 200.0, **resumed(before)}
    found, machine = search(tmp_path / "next", GRAPHS, with_noise(step_ms, 0.06), **again)
    later = [one for one in machine.done if one.id not in machine.recalled and one.purpose == "confirm"]
    assert later and not any("graphs" in {use.name for use in one.asked} for one in later)
    assert any("1 of the confirmation's pairs is" in said for said in found.reused)


def test_one_lever_is_not_said_to_be_worth_what_two_are(tune: Tune) -> None:
    """tf32 wins nothing; without it graphs, which does, leaves itself out."""

    def left_out(uses: Uses) -> dict[str, str]:
        alone = "graphs" in uses and "compile" in uses and "tf32" not in uses
        return {"graphs": "its replay differs"} if alone else {}

    found, machine = tune(GRAPHS, factors(graphs=0.9, compile=0.5), left_out=left_out, budget=400.0)
    worth = {one.lever: one.leave_one_out for one in found.kept}
    assert worth["tf32"] is None and worth["graphs"] == pytest.approx(1 / 0.9)
    assert any(line.startswith("open  tf32") and "together with graphs, not in either" in line for line in machine.said)


@pytest.mark.parametrize(("others", "out"), [(1.0, {"idle", "useless"}), (0.7, set())])
def test_a_lever_that_leaves_itself_out_where_another_is_missing_does_not_end_the_trial(
    tune: Tune, others: float, out: set[str]
) -> None:
    """A GPT on an H100: without CUDA graphs a lever came to say that it had nothing to do, and nothing was learned."""

    def left_out(uses: Uses) -> dict[str, str]:
        return {"idle": "nothing was merged"} if "idle" in uses and "useless" not in uses else {}

    levers = [FakeLever("compile", 0.5), FakeLever("idle", 0.4), FakeLever("useless", 0.1)]
    found, _ = tune(levers, factors(compile=0.5, useless=others), left_out=left_out)
    assert out <= found.dropped.keys() and set(kept(found)) == {"compile", "idle", "useless"} - found.dropped.keys()
    assert "compile" in kept(found) and ("useless" in kept(found)) is not bool(out)
