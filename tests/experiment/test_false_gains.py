"""The rule that proves gains, on simulated machines: `benchmarks/false_gains.py` in small, with a fixed seed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import false_gains

MACHINES = [(0.01, 0.05, "normal"), (0.03, 0.01, "drift"), (0.01, 0.2, "heavy tails"), (0.002, 0.01, "two modes")]


def test_what_is_no_gain_is_hardly_ever_proved() -> None:
    """Once in a hundred, or less; of 200 comparisons four might be allowed by chance."""
    rows = [false_gains.simulate(at, *machine, tries=50) for at, machine in enumerate(MACHINES)]
    assert sum(row["proved"] for row in rows) / len(rows) <= 0.02
    assert all(row["through"] <= row["proved"] and row["covered"] >= 0.85 for row in rows), rows


def test_a_gain_of_five_percent_is_proved_on_a_quiet_machine_with_few_starts() -> None:
    row = false_gains.simulate(9, 0.002, 0.01, "normal", tries=40, gain=false_gains.GAIN, at_once=2)
    assert row["proved"] >= 0.95 and row["through"] >= 0.95 and row["starts"] < 3.5


@pytest.mark.parametrize("kind", false_gains.KINDS)
def test_a_machine_draws_what_its_kind_says(kind: str) -> None:
    import numpy as np

    machine = false_gains.Machine(np.random.default_rng(4), 0.0, 0.05, kind, 2.0)
    side, other = machine.start("before", ()), machine.start("after", [false_gains.LEVER])
    modes = {0.0, false_gains.MODES[1]} if kind == "two modes" else {0.0}
    assert side.log in modes and other.log in {mode - np.log(2) for mode in modes}
    turns = np.array([np.log(machine.turn(side).step_ms) for _ in range(2000)])
    spread = np.diff(np.percentile(np.diff(turns), [16, 84]))[0] / 2
    assert spread == pytest.approx(0.05 * np.sqrt(2), rel=0.25)
    assert bool(abs(turns[-1] - turns[0]) > 1) is (kind in {"drift", "both"})


def test_the_table_has_a_line_for_each_machine() -> None:
    cases = list(false_gains.cases(1, 4))[:4]
    rows = [false_gains.simulate(*case) for case in cases]
    text = false_gains.table(rows).splitlines()
    assert len(text) == 2 + 2 and all(line.count("|") == text[0].count("|") for line in text)


def one_look(seed: int, process_sd: float, turn_sd: float, kind: str, gain: float, tries: int) -> float:
    """How often a proof is made by a budget that allows two starts of each, and no more."""
    import numpy as np

    draw, proved = np.random.default_rng(seed), 0
    for _ in range(tries):
        machine = false_gains.Machine(draw, process_sd, turn_sd, kind, gain, at_once=2)
        machine.open_ratio = 10.0  # so that it begins with two starts
        machine.budget.left, machine.budget.starts_s = 1e9, lambda _: 1e12
        ratio, starts = machine.proves()
        assert starts == 2
        proved += ratio.proved
    return proved / tries


@pytest.mark.parametrize("machine", [*MACHINES, (0.05, 0.1, "normal")])
def test_the_last_look_of_a_short_budget_proves_what_is_large_and_nothing_else(
    machine: tuple[float, float, str],
) -> None:
    """Seen: three times as fast beside a busy core, by two starts of each, and not proved."""
    assert one_look(5, *machine, gain=1.0, tries=150) <= 0.02
    assert one_look(6, *machine, gain=3.0, tries=20) >= 0.9
