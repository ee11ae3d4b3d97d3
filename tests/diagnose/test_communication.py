"""What the backward of ranks on the CPU holds: computing, an exchange of gradients, or no one knows which."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_diagnose import FACTS, ROOT, phases, steps

from hotlap.diagnose.balance import Late, without_the_wait
from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.findings import communication, compute
from hotlap.diagnose.findings._base import Measured
from hotlap.records.run import ExchangeFacts, Facts, Phases
from made_runs import folder_of

HOST = phases(forward=6.0, backward=66.0, optimizer=6.0, other=2.0)
TOLD = ExchangeFacts(compute_ms=40.0, exchange_ms=62.0, hidden_ms=2.0)


def ranks_of(
    exchange: ExchangeFacts | None = None, wrapper: str | None = "DistributedDataParallel", **more: Any
) -> Facts:
    root = msgspec.structs.replace(ROOT, wrapper=wrapper, exchange=exchange)
    return msgspec.structs.replace(FACTS, **{"world": 2, "roots": (root,), **more})


def measured(facts: Facts, host: Phases = HOST, device: Phases | None = None) -> Measured:
    return Measured(80.0, host, device, 9.0 if device else None, facts)


def test_the_exchange_that_ddp_itself_measured_bounds_the_step(tmp_path: Path) -> None:
    lines = steps(host=HOST)
    found = diagnose(folder_of(tmp_path, (lines, ranks_of(TOLD)), (lines, ranks_of(TOLD, rank=1))))
    first, second = found.findings
    assert (found.bound, first.id, second.id) == ("communication", "communication", "compute")
    assert first.share == pytest.approx(0.6 * 66 / 80) and second.share == pytest.approx((6 + 0.4 * 66 + 6) / 80)
    assert "backward 26.4 ms without the exchange, optimizer 6.00 ms" in second.evidence
    assert "39.6 ms of a backward of 66.0 ms" in first.evidence and "3% of the exchange is hidden" in first.evidence


@pytest.mark.parametrize("told", [None, ExchangeFacts()])
def test_a_backward_whose_exchange_was_not_measured_is_not_called_computing(
    told: ExchangeFacts | None, tmp_path: Path
) -> None:
    lines = steps(host=HOST)
    found = diagnose(folder_of(tmp_path, (lines, ranks_of(told)), (lines, ranks_of(told, rank=1))))
    first, second = found.findings
    assert (found.bound, first.id) == ("unknown", "backward") and first.share == pytest.approx(66 / 80)
    assert "gradients between 2 ranks" in first.title and "no_sync" in first.instead
    assert second.id == "compute" and second.share == pytest.approx(12 / 80) and "backward" not in second.evidence


@pytest.mark.parametrize(
    "facts",
    [
        ranks_of(TOLD, world=1),
        ranks_of(None, wrapper=None),
        ranks_of(msgspec.structs.replace(TOLD, exchange_ms=3.0)),
        ranks_of(msgspec.structs.replace(TOLD, exchange_ms=41.0, hidden_ms=41.0)),
    ],
    ids=["one rank", "not DDP", "little", "hidden"],
)
def test_what_exchanges_nothing_or_hides_it_computes(facts: Facts) -> None:
    found = compute.find(measured(facts))
    assert communication.find(measured(facts)) is None
    assert found is not None and found.share == pytest.approx(78 / 80)


def test_an_exchange_on_a_device_is_left_to_its_trace() -> None:
    assert communication.find(measured(ranks_of(TOLD, device="cuda"), device=HOST)) is None


def test_gradients_that_are_accumulated_are_exchanged_once() -> None:
    found = communication.find(measured(ranks_of(msgspec.structs.replace(TOLD, backwards=4.0))))
    assert found is not None and found.share == pytest.approx(60 / (4 * 40 + 60) * 66 / 80)


def test_what_a_straggler_explains_is_no_exchange() -> None:
    late = Late(1, 20.0, 0.25, "data", "")
    both = [communication.find(measured(ranks_of(TOLD))), compute.find(measured(ranks_of(TOLD)))]
    waits, computes = without_the_wait([one for one in both if one], late, mine=False)
    assert waits.share == pytest.approx(0.6 * 66 / 80 - 0.25) and computes == both[1]
    mine = without_the_wait([one for one in both if one], Late(0, 20.0, 0.25, "forward", ""), mine=True)
    assert mine[0] == both[0] and mine[1].share == pytest.approx((6 + 0.4 * 66 + 6) / 80 - 0.25)
