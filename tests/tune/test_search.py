"""The search on a machine of our own making (`machine.py`)."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from machine import LOSSES, TRIAL_S, FakeLever, Machine, Tune, Uses, factors, kept, single, uses_of, with_noise

from hotlap.levers._base import Applies, Context, Settings
from hotlap.records import run as records
from hotlap.records.errors import CommandFailed, NothingMeasured
from hotlap.records.run import Facts, RootFacts
from hotlap.records.tune import Trial
from hotlap.tune.confirm import REUSED_TWIN
from hotlap.tune.evidence import Evidence
from hotlap.tune.objective import Objective
from hotlap.tune.proof import Proof
from hotlap.tune.search import Search
from hotlap.tune.state import Asked, by_text, value_text
from hotlap.tune.statistics import abba

# the climb


def _episodes(uses: Uses) -> float:
    """Rows of a step, as of an episode, which is another one where the model computes otherwise."""
    return 300.0 if "rounds" in uses else 500.0


def test_steps_that_hold_other_work_are_not_compared(tune: Tune) -> None:
    levers = [FakeLever("rounds", 0.5), single("helps", 0.3)]
    found, _ = tune(levers, factors(rounds=0.6, helps=0.8), rows=_episodes)
    assert kept(found) == ["helps"] and "held 300 rows each, the bare command's 500" in found.dropped["rounds"].why
    assert found.dropped["rounds"].ratio is None, "a number that says nothing is not told"


def test_other_work_in_a_confirmation_run_confirms_nothing(tune: Tune) -> None:
    seen = iter(range(100))

    def rows(uses: Uses) -> float:
        return 500.0 if not uses or next(seen) < 2 else 300.0

    found, _ = tune([FakeLever("rounds", 0.5)], factors(rounds=0.6), rows=rows)
    assert not found.gain and "rows each" in found.dropped["rounds"].why
    assert found.pairs and found.speedup is None is found.interval, "a ratio of unlike work"


@pytest.mark.parametrize("always", [True, False])
def test_long_steps_that_typical_ones_do_not_show_count(always: bool, tune: Tune) -> None:
    """A loop with a rollout every few steps, whose trials have few of them; or one hiccup of the machine."""
    long = iter(range(100))

    def mean_ms(uses: Uses) -> float:
        return 150.0 if uses and (always or next(long) < 1) else 110.0

    found, machine = tune([FakeLever("threads", 0.5)], factors(threads=0.7), mean_ms=mean_ms)
    assert kept(found) == ([] if always else ["threads"])
    assert machine.tries()[:1] == ["threads"] and any("again" in trial.purpose for trial in machine.done)
    if always:
        assert found.dropped["threads"].why == "slower"
        assert found.dropped["threads"].ratio == pytest.approx(110 / 150), "which is that of the mean"


def test_a_restless_number_of_rows_is_the_commands_own(tune: Tune) -> None:
    bare = iter([300.0, 500.0])
    found, _ = tune(
        [FakeLever("helps", 0.5)], factors(helps=0.6), rows=lambda uses: 280.0 if uses else next(bare, 400.0)
    )
    assert kept(found) == ["helps"]


def test_greedy_by_what_each_can_win(tune: Tune) -> None:
    levers = [single("a", 0.2), single("b", 0.6), single("c", 0.4)]
    found, machine = tune(levers, factors(a=0.8, b=0.5, c=0.7))
    assert machine.tries() == ["b", "c", "a"] == kept(found)
    assert [round(item.measured or 0, 3) for item in found.kept] == [2.0, 1.429, 1.25]
    assert found.speedup == pytest.approx(1 / (0.8 * 0.5 * 0.7))
    assert found.interval is not None and found.interval.low == pytest.approx(found.speedup)
    assert [trial.purpose for trial in machine.done[:2]] == ["baseline", "baseline"]
    assert all(not trial.levers for trial in machine.done[:2])


def test_what_gains_nothing_is_dropped_and_said(tune: Tune) -> None:
    levers = [single("helps", 0.5), single("idle", 0.4), single("harms", 0.3), FakeLever("tiny", 0.001)]
    found, machine = tune(levers, factors(helps=0.5, idle=1.0, harms=1.5))
    assert kept(found) == ["helps"]
    assert found.dropped["idle"].why.startswith("no gain") and found.dropped["idle"].ratio == pytest.approx(1.0)
    assert found.dropped["harms"].why == "slower" and found.dropped["harms"].ratio == pytest.approx(1 / 1.5)
    assert "at most 0.1%" in found.dropped["tiny"].why and "tiny" not in machine.tries()
    assert any("keep" in line and "helps" in line for line in machine.said)
    assert found.not_done == ""


def test_of_settings_that_are_all_slower_the_best_is_told(tune: Tune) -> None:
    """Two workers 0.62 times as fast, then one 0.43 times: what is told of workers is 0.62."""
    lever = FakeLever("w", 0.8, ({"n": 2}, {"n": 1}), searched=lambda _: True)
    slower = iter([160.0, 230.0])
    found, machine = tune([lever], lambda uses: next(slower, 100.0) if uses else 100.0)
    assert machine.tries() == ["w", "w"] and kept(found) == []
    assert found.dropped["w"].why == "slower" and found.dropped["w"].ratio == pytest.approx(1 / 1.6)


def test_nothing_to_gain_confirms_nothing(tune: Tune) -> None:
    found, machine = tune([FakeLever("idle", 0.5)], factors())
    assert kept(found) == [] and found.speedup is None and found.interval is None
    assert not [trial for trial in machine.done if trial.purpose == "confirm"]
    assert found.baseline is not None and found.baseline.step_ms == 100.0


def test_a_lever_whose_bound_comes_up_is_tried_then(tune: Tune) -> None:
    levers = [FakeLever("loader", 0.5, only_when="input"), FakeLever("math", 0.4, only_when="compute")]
    found, machine = tune(
        levers, factors(loader=0.5, math=0.5), bound=lambda uses: "compute" if "loader" in uses else "input"
    )
    assert machine.tries() == ["loader", "math"] == kept(found)
    assert "math" not in found.dropped, "it was refused before, and kept in the end"


class _ByMasks(FakeLever):
    def applies(self, context: Context) -> Applies:
        return Applies(any(root.empty_blocks for root in context.facts.roots), "of masks")


class _ShowsMasks(Machine):
    """The lever `attention` tells of masks in the facts of its trial."""

    def rank(self, trial: Trial) -> Any:
        folder = self.folder / f"trials/{trial.id}/rank-0"
        folder.mkdir(parents=True, exist_ok=True)
        empty = 0.8 if "attention" in uses_of(trial.levers) else 0.0
        root = RootFacts(name="Model", parameters=1, modules=1, empty_blocks=empty)
        facts = Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", mode="train", roots=(root,))
        (folder / "facts.json").write_bytes(msgspec.json.encode(facts))
        return SimpleNamespace(folder=folder, facts=facts)


def test_a_lever_is_tried_for_what_another_one_that_is_in_shows(tmp_path: Path) -> None:
    machine = _ShowsMasks(factors(attention=0.5, **{"flex-attention": 0.5}), tmp_path)
    levers = {one.name: one for one in (FakeLever("attention", 0.5), _ByMasks("flex-attention", 0.4))}
    found = Search(machine, 10_000.0, Asked(), levers, machine.monotonic).run()  # type: ignore[arg-type]
    assert [kept.lever for kept in found.kept] == ["attention", "flex-attention"]
    machine = _ShowsMasks(factors(attention=1.1, **{"flex-attention": 0.5}), tmp_path)
    found = Search(machine, 10_000.0, Asked(), levers, machine.monotonic).run()  # type: ignore[arg-type]
    assert not found.kept and found.dropped["flex-attention"].why == "of masks"


def test_a_lever_that_gained_nothing_is_tried_again_under_another_bound(tune: Tune) -> None:
    levers = [single("math", 0.6), single("loader", 0.5)]

    def step_ms(uses: Uses) -> float:
        return 100.0 if "loader" not in uses else 50.0 * (0.5 if "math" in uses else 1.0)

    found, machine = tune(levers, step_ms, bound=lambda uses: "compute" if "loader" in uses else "input")
    assert machine.tries()[0] == "math" and kept(found) == ["loader", "math"]


def test_only_without_and_semantic(tune: Tune) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.4), FakeLever("batch", 0.3, risk="semantic", tolerance=0.0)]
    found, machine = tune(levers, factors(a=0.5, b=0.5, batch=0.5), without=("a",))
    assert machine.tries() == ["b"]
    assert "--without" in found.dropped["a"].why and "--allow semantic" in found.dropped["batch"].why


def test_only(tune: Tune) -> None:
    found, machine = tune([FakeLever("a", 0.5), FakeLever("b", 0.4)], factors(a=0.5, b=0.5), only=("b",))
    assert machine.tries() == ["b"] and "--only" in found.dropped["a"].why


def test_levers_that_exclude_each_other(tune: Tune) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.5, excludes=("a",)), FakeLever("c", 0.4, excludes=("a",))]
    found, machine = tune(levers, factors(a=0.5, b=0.5))
    assert machine.tries() == ["a", "b"], "b, which promises as much, gets a chance in the place of a"
    assert "can't be used with a" in found.dropped["c"].why
    assert kept(found) == ["a"] and "no better than a" in found.dropped["b"].why


def test_one_that_does_not_apply_says_so_and_not_what_it_can_not_be_used_with(tune: Tune) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.5, excludes=("a",), only_when="launch")]
    found, _ = tune(levers, factors(a=0.5))
    assert found.dropped["b"].why == "the bound is compute"


def test_a_lever_takes_the_place_of_one_that_it_excludes(tune: Tune) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.5, excludes=("a",)), FakeLever("c", 0.3)]
    found, _ = tune(levers, factors(a=0.6, b=0.4, c=0.8))
    assert kept(found) == ["c", "b"] and "b, which it can't be used with, is 1.50× faster" in found.dropped["a"].why
    assert found.speedup == pytest.approx(1 / (0.4 * 0.8))
    by_name = {item.lever: item for item in found.kept}
    assert by_name["b"].measured == by_name["b"].leave_one_out == pytest.approx(2.5)


# what can go wrong in a trial


@pytest.mark.parametrize("outcome", ["crashed", "timeout", "memory", "refused", "too few steps"])
def test_a_lever_that_fails_is_remembered(tune: Tune, outcome: str) -> None:
    """Neither tried again when the bound moves, nor in the way of others."""
    levers = [single("breaks", 0.9), single("loader", 0.5)]

    def bound(uses: Uses) -> str:
        return "compute" if "loader" in uses else "input"

    found, machine = tune(
        levers, factors(loader=0.5), bound=bound,
        outcome=lambda uses: (outcome, "it went wrong") if "breaks" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries() == ["breaks", "loader"] and kept(found) == ["loader"]
    assert found.dropped["breaks"].why == f"{outcome}: it went wrong"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ("crashed", CommandFailed),
        ("memory", CommandFailed),
        ("timeout", NothingMeasured),
        ("too few steps", NothingMeasured),
    ],
)
def test_a_command_that_fails_by_itself(tune: Tune, outcome: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="boom"):
        tune([FakeLever("a", 0.5)], factors(), outcome=lambda uses: (outcome, "boom"))


def test_a_command_that_fails_the_second_time(tune: Tune) -> None:
    calls: list[int] = []

    def outcome(uses: Uses) -> tuple[str, str]:
        calls.append(1)
        return ("measured", "") if len(calls) == 1 else ("crashed", "port in use")

    with pytest.raises(CommandFailed, match="port in use"):
        tune([FakeLever("a", 0.5)], factors(), outcome=outcome)


def test_parity_decides_over_speed(tune: Tune) -> None:
    levers = [single("cheat", 0.9), single("honest", 0.5)]

    def evidence(uses: Uses) -> Evidence:
        return Evidence(tuple((1.5 * x if "cheat" in uses else x,) for (x,) in LOSSES))

    found, machine = tune(levers, factors(cheat=0.1, honest=0.6), evidence_of=evidence)
    assert kept(found) == ["honest"]
    assert found.dropped["cheat"].why.startswith("parity: ") and found.dropped["cheat"].ratio == pytest.approx(10)
    assert machine.tries() == ["cheat", "honest"]
    assert found.parity is not None and found.parity.ok and found.parity.level == "bitwise"


def draws_of_its_own(name: str) -> FakeLever:
    """A lever with which other random numbers are drawn, but for a setting."""
    return FakeLever(name, 0.5, risk="numeric", tolerance=0.01, for_parity=lambda settings: {**settings, "same": True})


@pytest.mark.parametrize("alike", [True, False])
def test_a_lever_that_draws_otherwise_is_judged_by_a_run_that_does_not_before_any_twin(tune: Tune, alike: bool) -> None:
    """Four nudged twins of a model with dropout took a third of a tune, and then that run proved it."""

    def evidence(uses: Uses) -> Evidence:
        other = "a" in uses and not (alike and uses["a"].get("same"))
        return Evidence(tuple((1.3 * x if other else x,) for (x,) in LOSSES), draws=True)

    found, machine = tune([draws_of_its_own("a")], factors(a=0.5), evidence_of=evidence)
    purposes = [trial.purpose for trial in machine.done]
    assert purposes[:4] == ["baseline", "baseline", "try a", "parity"]
    assert kept(found) == (["a"] if alike else [])
    assert any("twin" in purpose for purpose in purposes) is not alike


def test_twins_that_are_there_are_asked_before_another_run() -> None:
    def run(purpose: str, levers: Any, special: Any) -> Any:
        made.append(purpose)
        return SimpleNamespace(purpose=purpose, outcome="measured")

    def evidence(trial: Any) -> Evidence:
        return Evidence(tuple(({"nudged twin": 1.05}.get(trial.purpose, 1.1) * x,) for (x,) in LOSSES), draws=True)

    made: list[str] = []
    trials: Any = SimpleNamespace(evidence=evidence, plan=SimpleNamespace(seed=0))
    levers = {"rounds": FakeLever("rounds", 0.5, risk="numeric"), "draws": draws_of_its_own("draws")}
    proof = Proof(trials, levers, run)
    proof.base = proof.again = Evidence(LOSSES, draws=True)
    tried: Any = SimpleNamespace(purpose="try")
    assert proof.judge([records.Lever(name="rounds")], tried).ok and made == ["nudged twin"]
    assert proof.judge([records.Lever(name="draws")], tried).ok and made == ["nudged twin"]


def test_one_whose_own_run_fails_is_judged_by_twins(tune: Tune) -> None:
    def evidence(uses: Uses) -> Evidence:
        return Evidence(tuple((1.3 * x if "a" in uses else x,) for (x,) in LOSSES), draws=True)

    found, machine = tune(
        [draws_of_its_own("a")], factors(a=0.5), evidence_of=evidence,
        outcome=lambda uses: ("crashed", "x") if uses.get("a", {}).get("same") else ("measured", ""),
    )  # fmt: skip
    purposes = [trial.purpose for trial in machine.done]
    assert purposes.index("parity") < purposes.index("nudged twin") and kept(found) == []


def rounded_once() -> Callable[[Uses], Evidence]:
    """Evidence of a script in which one rounding of the weights does half of what the lever `a` does."""
    bare = iter([1.0, 1.0, 1.05])  # two baselines, then the first twin

    def evidence(uses: Uses) -> Evidence:
        off = 1.1 if "a" in uses else next(bare, 1.0)
        return Evidence(tuple((off * x,) for (x,) in LOSSES))

    return evidence


def test_a_nudged_twin_is_the_neighbour_of_the_first_b(tune: Tune) -> None:
    """On an H100 twins left time for one pair of 12.5 times, which proves nothing."""
    step_ms = with_noise(factors(a=0.1), 0.05)
    rounds = FakeLever("a", 0.9, risk="numeric", tolerance=0.01)
    found, machine = tune([rounds], step_ms, evidence_of=rounded_once(), budget=70.0)
    purposes = [trial.purpose for trial in machine.done]
    assert purposes == ["baseline", "baseline", "try a", "nudged twin", "confirm", "confirm", "confirm"]
    assert kept(found) == ["a"] and found.pairs == 2 and found.reused == [REUSED_TWIN]
    assert found.speedup == pytest.approx(10, rel=0.06)


def test_one_that_did_not_run_right_before_is_none(tune: Tune) -> None:
    levers = [single("a", 0.9, risk="numeric", tolerance=0.01), single("b", 0.5)]
    found, machine = tune(levers, with_noise(factors(a=0.1), 0.05), evidence_of=rounded_once())
    confirms = [trial for trial in machine.done if trial.purpose == "confirm"]
    assert kept(found) == ["a"] and len(confirms) == 2 * found.pairs and REUSED_TWIN not in found.reused


def test_memory_of_a_nudged_twin_is_not_that_of_the_bare_command(tune: Tune) -> None:
    found, machine = tune(
        [FakeLever("a", 0.9, risk="numeric", tolerance=0.01, saves_memory=True)], factors(),
        objective=Objective("memory"), peak_mib=lambda uses: 500.0 if uses else 1000.0, evidence_of=rounded_once(),
    )  # fmt: skip
    confirms = [trial for trial in machine.done if trial.purpose == "confirm"]
    assert kept(found) == ["a"] and any(trial.purpose == "nudged twin" for trial in machine.done)
    assert found.reused != [REUSED_TWIN] and len(confirms) >= 3


def test_why_a_lever_could_not_help_is_forgotten_once_it_can(tune: Tune) -> None:
    """ "nothing is compiled: it needs compile" was told of one beside a recipe with compile."""
    levers = [single("first", 0.9), single("then", 0.8, only_when="input")]
    found, machine = tune(
        levers, factors(first=0.5, then=0.5), bound=lambda uses: "input" if uses else "compute", budget=60.0
    )
    assert machine.tries() == ["first"] and kept(found) == ["first"]
    assert found.dropped["then"].why == "the budget ended before it was tried to the end"


def test_parity_is_judged_in_the_confirmation_too(tune: Tune) -> None:
    calls: list[int] = []

    def evidence(uses: Uses) -> Evidence:
        calls.append(1)
        return Evidence(LOSSES if "a" not in uses or len(calls) < 4 else tuple((9.0,) for _ in LOSSES))

    found, _ = tune([FakeLever("a", 0.5)], factors(a=0.5), evidence_of=evidence)
    assert kept(found) == [] and "parity in a confirmation run" in found.dropped["a"].why


def test_what_was_looked_at_twice_shows_both_looks(tune: Tune) -> None:
    bare, with_a = iter([100.0, 101.0, 88.0]), iter([98.0, 130.0])
    found, machine = tune([single("a", 0.5)], lambda uses: next(with_a) if uses else next(bare, 100.0))
    dropped = [one for one in machine.said if one.startswith("drop  a")]
    assert dropped == ["drop  a  98.0 ms, 130 ms  1.03× and 0.68× in two looks"]
    assert found.dropped["a"].why == "no gain" and found.dropped["a"].ratio == pytest.approx(0.835, abs=0.01)


def test_two_looks_that_disagree_on_a_gain_are_not_told_as_a_ratio_of_one(tune: Tune) -> None:
    """The demo said `cpu-threads 1.00×` where it had measured 1.93 and 0.98."""
    bare, with_a = iter([100.0, 110.0, 88.0]), iter([96.0, 90.0])
    found, machine = tune([single("a", 0.5)], lambda uses: next(with_a) if uses else next(bare, 100.0))
    assert any("in two looks" in one for one in machine.said if one.startswith("drop  a"))
    assert found.dropped["a"].why == "no gain" and found.dropped["a"].ratio is None


# variants


def test_a_variant_that_fails_gives_way_to_the_next(tune: Tune) -> None:
    lever = FakeLever("a", 0.5, ({"mode": "wild"}, {"mode": "tame"}))
    found, _ = tune(
        [lever], factors(a=0.5),
        outcome=lambda uses: ("crashed", "x") if uses.get("a") == {"mode": "wild"} else ("measured", ""),
    )  # fmt: skip
    assert [item.settings for item in found.kept] == [{"mode": "tame"}]


def test_a_lever_that_hung_is_not_tried_with_other_settings(tune: Tune) -> None:
    lever = FakeLever("w", 0.8, tuple({"n": n} for n in (1, 2, 3)), searched=lambda _: True)
    found, machine = tune([lever], factors(), outcome=lambda uses: ("timeout", "30 s") if uses else ("measured", ""))
    assert machine.tries() == ["w"] and found.dropped["w"].why == "timeout: 30 s"


def test_one_that_hung_when_it_compiled_is_tried_without(tune: Tune) -> None:
    lever = single("cache", 0.9, choices=({"compile": True}, {"compile": False}))

    def outcome(uses: Uses) -> tuple[str, str]:
        return ("timeout", "") if uses.get("cache", {}).get("compile") else ("measured", "")

    found, machine = tune([lever], factors(cache=0.1), outcome=outcome, budget=4000.0)
    assert machine.tries() == ["cache"] * 2 and found.kept[0].settings == {"compile": False}


def test_a_trial_that_the_budget_ended_is_not_held_against_its_lever(tune: Tune) -> None:
    found, _ = tune(
        [FakeLever("a", 0.8)], factors(), budget=80.0,
        outcome=lambda uses: ("timeout", "45 s") if uses else ("measured", ""),
    )  # fmt: skip
    assert found.dropped["a"].why == "the budget ended before it was tried to the end" and "a" in found.not_done


def test_numbers_are_searched_while_they_gain(tune: Tune) -> None:
    lever = FakeLever("w", 0.8, tuple({"n": n} for n in (1, 2, 3)), searched=lambda _: True)
    times = {1: 50.0, 2: 30.0, 3: 29.9}
    found, machine = tune([lever], lambda uses: times[uses["w"]["n"]] if "w" in uses else 100.0)
    assert [item.settings for item in found.kept] == [{"n": 2}], "3 is no better than 2"
    assert found.speedup == pytest.approx(100 / 30)
    assert machine.tries()[:2] == ["w", "w"]


def test_one_that_can_win_little_and_is_slower_is_not_tried_with_other_settings(tune: Tune) -> None:
    settings = ({"n": 1}, {"n": 2}, {"n": 3})
    levers = [FakeLever(name, share, settings, searched=lambda _: True) for name, share in (("few", 0.06), ("w", 0.3))]
    _, machine = tune(levers, lambda uses: 120.0 if uses else 100.0)
    assert machine.tries() == ["w"] * 3 + ["few"]


def test_one_that_wins_nothing_takes_no_place(tune: Tune) -> None:
    """As levers that save memory, beside a lever whose bound is gone and which wins nothing any more by its share."""

    class Gone(FakeLever):
        def share(self, context: Context) -> float:
            return self.claimed if context.diagnosis.bound == "launch" else 0.0

    levers = [Gone("graphs", 0.5), FakeLever("blocks", 0.0, excludes=("graphs",))]
    found, machine = tune(levers, factors(graphs=0.5), bound=lambda uses: "compute" if uses else "launch")
    assert machine.tries() == ["graphs"] == kept(found)


def test_where_the_first_number_wins_little_both_neighbours_are_tried(tune: Tune) -> None:
    lever = FakeLever("w", 0.08, tuple({"n": n} for n in (2, 3, 1)), searched=lambda _: True)
    times = {1: 91.0, 2: 95.0, 3: 110.0}
    found, _ = tune([lever], lambda uses: times[uses["w"]["n"]] if uses else 100.0)
    assert [item.settings for item in found.kept] == [{"n": 1}]


# leave-one-out, confirmation, budget


def test_what_another_hides_is_left_out_after_it(tune: Tune) -> None:
    """Both do the same, `half` for a cost of its own: `full` alone is the best, though it is worth least beside it."""

    class Full(FakeLever):
        def share(self, context: Context) -> float:
            return 0.03 if "half" in context.active else 0.6

    class Half(FakeLever):
        def share(self, context: Context) -> float:
            return 0.35 if "full" in context.active else 0.75

    levers = [Half("half", 0.7), Full("full", 0.6), FakeLever("third", 0.4)]

    def step_ms(uses: Uses) -> float:
        base = 50.0 if "half" in uses else 40.0 if "full" in uses else 100.0
        return base * (0.5 if "third" in uses else 1.0)

    found, machine = tune(levers, step_ms)
    without = [trial.purpose for trial in machine.done if trial.purpose.startswith("without")]
    assert without.index("without half") < without.index("without full")
    assert sorted(kept(found)) == ["full", "third"] and found.speedup == pytest.approx(5.0)


def test_a_passenger_is_taken_out(tune: Tune) -> None:
    """`first` helps alone, and nothing beside `second`."""
    levers = [single("first", 0.6), single("second", 0.5), single("third", 0.4)]

    def step_ms(uses: Uses) -> float:
        base = 40.0 if "second" in uses else 70.0 if "first" in uses else 100.0
        return base * (0.5 if "third" in uses else 1.0)

    found, machine = tune(levers, step_ms)
    assert kept(found) == ["second", "third"]
    assert "no gain beside the others" in found.dropped["first"].why
    confirmed = {tuple(uses_of(trial.levers)) for trial in machine.done if trial.purpose == "confirm"}
    assert confirmed == {(), ("second", "third")}
    assert found.speedup == pytest.approx(5.0)
    assert found.kept[0].leave_one_out == pytest.approx(2.0, rel=0.3)


def test_the_confirmation_is_in_abba_order_of_fresh_runs(tune: Tune) -> None:
    found, machine = tune([FakeLever("a", 0.5)], with_noise(factors(a=0.5), 0.02))
    order = "".join("B" if trial.levers else "A" for trial in machine.done if trial.purpose == "confirm")
    assert len(order) == 2 * found.pairs and abba(8).startswith(order) and found.pairs >= 3
    assert not found.reused


def test_on_a_machine_that_is_still_the_baseline_is_the_first_a(tune: Tune) -> None:
    found, machine = tune([FakeLever("a", 0.5)], factors(a=0.5))
    order = "".join("B" if trial.levers else "A" for trial in machine.done if trial.purpose == "confirm")
    assert order == "BBA" and found.pairs == 2 and found.gain and "first A" in found.reused[0]


def test_two_baselines_that_agree_by_chance_do_not_make_a_machine_still(tune: Tune) -> None:
    """Steps of 70 to 130 ms: means of 20 of them are not known to 1%, so three pairs, and no baseline among them."""
    found, machine = tune([FakeLever("a", 0.5)], factors(a=0.5), restless=0.3)
    order = "".join("B" if trial.levers else "A" for trial in machine.done if trial.purpose == "confirm")
    assert order == "ABBAAB" and found.pairs == 3 and not found.reused
    assert found.noise == 0.0  # what is told of the two runs is how far they differ


def test_a_baseline_that_the_machine_has_drifted_from_is_no_a(tune: Tune) -> None:
    """Two quiet baselines, and 5% more ever after."""
    runs = iter([100.0, 100.0])
    found, machine = tune([FakeLever("a", 0.5)], lambda uses: 52.5 if uses else next(runs, 105.0))
    order = "".join("B" if trial.levers else "A" for trial in machine.done if trial.purpose == "confirm")
    assert order == "BBAA" and found.pairs == 2 and not found.reused
    assert found.speedup == pytest.approx(2.0)


@pytest.mark.parametrize(("drift", "pairs"), [(1.0, 2), (1.02, 1)])
def test_where_only_one_more_run_fits_the_baseline_is_its_partner(tune: Tune, drift: float, pairs: int) -> None:
    """The try compiles for long, so that there seems to be no time for B B A; its second start is quick."""
    bare = iter([100.0, 100.0])

    def wall_s(purpose: str, uses: Uses, least: int) -> float:
        return 16.0 if not uses else 40.0 if purpose.startswith("try") else 21.0

    lever = FakeLever("a", 0.5)
    found, machine = tune(
        [lever], lambda uses: 50.0 if uses else next(bare, 100.0 * drift), budget=128.0, wall_of=wall_s
    )
    order = "".join("B" if trial.levers else "A" for trial in machine.done if trial.purpose == "confirm")
    assert (order, found.pairs, found.gain) == ("ABB" if pairs == 2 else "AB", pairs, pairs == 2)
    assert bool(found.reused) == (pairs == 2)


def test_a_gain_that_the_confirmation_does_not_bear_out_is_not_kept(tune: Tune) -> None:
    """The climb was lucky: in fresh pairs the interval spans 1."""
    wild = iter([1.0, 2.0] * 20)
    confirming: list[bool] = []

    def step_ms(uses: Uses) -> float:
        confirming.append("a" in uses)
        if len(confirming) <= 3:
            return 50.0 if "a" in uses else 100.0
        return 100.0 * next(wild)

    found, _ = tune([FakeLever("a", 0.5)], step_ms)
    assert kept(found) == [] and "interval" in found.dropped["a"].why
    assert found.interval is not None and found.interval.low <= 1


@pytest.mark.parametrize(("budget", "pairs"), [(89.0, 3), (84.0, 2)])
def test_one_more_pair_may_exceed_the_budget_where_all_show_a_gain_that_is_not_proved(
    tune: Tune, budget: float, pairs: int
) -> None:
    """By 5% at most, as the fewest pairs may."""
    bare = iter([100.0, 112.0, 80.0, 160.0, 120.0, 110.0])
    found, machine = tune([FakeLever("a", 0.5)], lambda uses: 40.0 if uses else next(bare), budget=budget)
    assert found.pairs == pairs and found.gain == (pairs == 3)
    assert machine.now - 1000.0 <= 1.05 * budget


def test_what_is_slower_when_it_is_confirmed_is_tried_in_parts(tune: Tune) -> None:
    """Together they were faster by chance, once; one of them is a gain."""
    names = [FakeLever(name, 0.5 - at / 10) for at, name in enumerate("abcd")]
    tried: list[Uses] = []

    def step(uses: Uses) -> float:
        tried.append(uses)
        if len(uses) == 4:
            return 50.0 if tried.count(uses) == 1 else 160.0
        return (60.0 if "c" in uses else 100.0) * (2.0 if "b" in uses else 1.0)

    found, machine = tune(names, step)
    confirmed = ["".join(uses_of(trial.levers)) for trial in machine.done if trial.purpose == "confirm"]
    assert kept(found) == ["c"] and found.gain and confirmed.count("abcd") == 1
    assert "a" in found.dropped and "b" in found.dropped and "d" in found.dropped
    assert found.speedup == pytest.approx(100 / 60) and [line for line in machine.said if "in parts" in line]


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_that_was_measured_of_what_was_slower_is_told_of_its_parts(tmp_path: Path, interrupted: bool) -> None:
    """Two pairs, each within what noise makes; then none of the parts is a gain, or Ctrl-C comes."""
    tried: list[int] = []

    def step(uses: Uses) -> float:
        tried.append(len(uses))
        if len(uses) == 2:
            return 50.0 if tried.count(2) == 1 else 105.0
        if interrupted and uses and tried.count(2) > 1:
            raise KeyboardInterrupt
        return 100.0

    machine = Machine(step, tmp_path / "m")
    levers = {name: FakeLever(name, 0.5) for name in "ab"}
    search = Search(machine, 10_000.0, levers=levers, clock=machine.monotonic)  # type: ignore[arg-type]
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
    found = search.found
    assert [line for line in machine.said if "in parts" in line] and kept(found) == [] and not found.gain
    told = (found.speedup, found.interval, found.before_ms, found.after_ms, found.parity, found.tuned, found.break_even)
    assert told == (None,) * 7 and not found.pairs and not found.costs and found.memory == (None, None)
    assert not [line for line in found.reused if "confirmation" in line]


def test_a_machine_that_has_slowed_down_since_the_baseline_makes_nothing_slower(tune: Tune) -> None:
    """The baseline was to be the first A of the confirmation."""
    tried: list[Uses] = []

    def step(uses: Uses) -> float:
        tried.append(uses)
        slow = 3.0 if len(tried) > 3 else 1.0
        return slow * (50.0 if uses else 100.0)

    found, machine = tune([FakeLever("a", 0.5)], step)
    assert kept(found) == ["a"] and found.gain and found.speedup == pytest.approx(2.0)
    assert not [line for line in machine.said if "in parts" in line]


def test_one_that_is_slower_when_it_is_confirmed_is_not_tried_for_ever(tune: Tune) -> None:
    tried: list[Uses] = []

    def step(uses: Uses) -> float:
        tried.append(uses)
        return 100.0 if not uses else 50.0 if tried.count(uses) == 1 else 160.0

    found, machine = tune([FakeLever("a", 0.5)], step)
    assert kept(found) == [] and not found.gain and "slower beside the bare command, 0.62×" in found.dropped["a"].why
    assert machine.tries() == ["a"]
    assert [bool(t.levers) for t in machine.done if t.purpose == "confirm"] == [True, False], "a loss beside one of now"


def test_where_no_time_is_left_what_was_slower_is_only_said(tune: Tune) -> None:
    tried: list[Uses] = []

    def step(uses: Uses) -> float:
        tried.append(uses)
        return 100.0 if not uses else 50.0 if tried.count(uses) == 1 else 160.0

    found, machine = tune([FakeLever("a", 0.5), FakeLever("b", 0.4)], step, budget=75.0)
    assert kept(found) == [] and machine.tries() == ["a + b"] and machine.now <= 1000.0 + 75.0
    assert "slower beside the bare command" in found.dropped["a"].why
    assert "no time was left to try in parts what was slower" in found.not_done


def test_a_confirmation_run_that_fails_keeps_nothing(tune: Tune) -> None:
    made: list[int] = []

    def outcome(uses: Uses) -> tuple[str, str]:
        made.append(1)
        return ("measured", "") if len(made) < 6 else ("crashed", "cosmic ray")

    found, _ = tune([FakeLever("a", 0.5)], factors(a=0.5), outcome=outcome)
    assert kept(found) == [] and "cosmic ray" in found.dropped["a"].why


@pytest.mark.parametrize("budget", [90.0, 130.0, 200.0, 400.0])
def test_the_budget_is_kept_and_what_is_kept_is_confirmed(tune: Tune, budget: float) -> None:
    levers = [FakeLever(name, 0.5) for name in "abcdefghijkl"]
    found, machine = tune(levers, factors(**dict.fromkeys("abcdefghijkl", 0.9)), budget=budget)
    assert machine.now - 1000.0 <= budget + 2 * TRIAL_S
    assert kept(found), "something was found before the budget ended"
    if budget < 200:
        assert "leave-one-out of" in found.not_done
    assert found.pairs >= 2 and found.interval is not None and found.interval.low > 1


def test_a_variant_that_was_judged_is_kept_when_the_budget_ends_at_the_next(tune: Tune) -> None:
    lever = FakeLever("w", 0.8, tuple({"n": n} for n in range(1, 4)), searched=lambda _: True)
    found, machine = tune([lever], factors(w=0.5), budget=75.0, wall_s=11.0)
    assert len(machine.tries()) < 3, "the budget should have ended before the last variant"
    assert [item.settings for item in found.kept] == [{"n": 1}]
    assert found.pairs >= 2 and found.interval is not None and found.interval.low > 1


def test_what_noise_may_have_made_gives_way_to_others_where_no_time_is_left_to_look_again(tune: Tune) -> None:
    levers = [single("a", 0.8), single("b", 0.7)]
    bare = iter([100.0, 110.0])

    def step_ms(uses: Uses) -> float:
        return 50.0 if "b" in uses else 95.0 if "a" in uses else next(bare, 105.0)

    found, machine = tune(levers, step_ms, budget=90.0)
    assert machine.tries() == ["a", "b"]
    assert "no time was left to look again" in found.dropped["a"].why
    assert kept(found) == ["b"] and found.pairs >= 2
    assert any(line.startswith("open  a") for line in machine.said), "it is not dropped yet when that is said"
    assert found.not_done == "no time was left for a second look at a"


def test_two_looks_at_what_a_lever_is_worth_count_alike(tune: Tune) -> None:
    """Without `a` a step takes 10% more, then 5% less; neither of the two is what it is worth."""
    bare, alone = iter([98.0, 102.0]), iter([33.0, 28.5])

    def step_ms(uses: Uses) -> float:
        if "b" in uses:
            return 30.0 if "a" in uses else next(alone)
        return 60.0 if "a" in uses else next(bare, 100.0)

    found, _ = tune([single("a", 0.5), single("b", 0.4)], step_ms)
    assert kept(found) == ["a", "b"]
    assert found.kept[0].leave_one_out == pytest.approx((1.1 * 0.95) ** 0.5)


def test_an_interruption_leaves_what_is_known(tmp_path: Path) -> None:
    levers = [single("a", 0.5), single("b", 0.4)]

    def outcome(uses: Uses) -> tuple[str, str]:
        if "b" in uses:
            raise KeyboardInterrupt
        return "measured", ""

    machine = Machine(factors(a=0.5), tmp_path / "i", outcome=outcome)
    known = {lever.name: lever for lever in levers}
    search = Search(machine, 10_000.0, levers=known, clock=machine.monotonic)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert kept(search.found) == ["a"] and search.found.baseline is not None


def test_noise_is_looked_at_twice(tune: Tune) -> None:
    """A first look of 5% that a second look does not bear out is no gain."""
    looks = iter([95.0, 100.0, 100.0, 100.0])

    def step_ms(uses: Uses) -> float:
        return next(looks) if "lucky" in uses else 100.0

    noisy = iter([98.0, 102.0])

    def with_noise(uses: Uses) -> float:
        return step_ms(uses) if uses else next(noisy, 100.0)

    found, machine = tune([FakeLever("lucky", 0.5)], with_noise)
    assert kept(found) == []
    assert sum("lucky" in uses_of(trial.levers) for trial in machine.done) == 2


@pytest.mark.parametrize(("bound", "again"), [("compute", 0), ("input", 1)])
def test_noise_of_the_bare_command_does_not_count_where_its_bound_is_gone(bound: str, again: int, tune: Tune) -> None:
    """Runs that wait for their input differ by a third, those that compute do not."""
    bare = iter([100.0, 135.0])

    def step_ms(uses: Uses) -> float:
        return 10.0 * (0.9 if "b" in uses else 1.0) if "a" in uses else next(bare, 110.0)

    levers = [single("a", 0.9), single("b", 0.4, only_when=bound)]
    found, machine = tune(levers, step_ms, bound=lambda uses: bound if uses else "input")
    assert set(kept(found)) == {"a", "b"}
    assert [trial.purpose for trial in machine.done].count("try b again") == again


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "not at all"), (3e-9, "by less than 0.01%"), (6e-5, "by 0.01%"), (0.012, "by 1.20%")],
)
def test_what_digits_can_not_show_is_not_nothing(share: float, said: str) -> None:
    assert by_text(share, 2) == said
    assert by_text(4e-4, 1) == "by less than 0.1%"


def test_losses_that_hardly_differ_are_not_told_as_equal(tune: Tune) -> None:
    bare = iter((LOSSES, tuple((loss * (1 + 1e-9),) for (loss,) in LOSSES)))
    _, machine = tune([single("a", 0.5)], factors(a=0.5), evidence_of=lambda uses: Evidence(next(bare, LOSSES)))
    (line,) = [line for line in machine.said if line.startswith("baseline")]
    assert line.endswith("two runs differ not at all in time, by less than 0.01% in loss")


def test_long_steps_and_large_peaks_are_written_out() -> None:
    assert value_text(12_345.6, Objective()) == "12.3 s"
    assert value_text(80_000 * 2.0**20, Objective("memory")) == "80,000 MiB"


# what-if


def test_on_cuda_the_second_baseline_is_profiled_after_its_steps(tune: Tune) -> None:
    found, machine = tune([FakeLever("a", 0.5)], factors(a=0.5), device="cuda")
    assert [special.profiled for special in machine.specials[:3]] == [False, True, False]
    assert any(line.startswith("what-if") for line in machine.said) and kept(found) == ["a"]
    assert found.kept[0].predicted_by == "share", "there is no trace in this folder"


def test_a_profile_that_breaks_the_command_is_left_out(tune: Tune) -> None:
    runs: list[int] = []

    def outcome(uses: Uses) -> tuple[str, str]:
        runs.append(1)
        return ("crashed", "CUPTI") if len(runs) == 2 else ("measured", "")

    found, machine = tune([FakeLever("a", 0.5)], factors(a=0.5), device="cuda", outcome=outcome)
    assert [special.profiled for special in machine.specials[:3]] == [False, True, False]
    assert [trial.purpose for trial in machine.done[:3]] == ["baseline"] * 3 and kept(found) == ["a"]


@pytest.mark.parametrize(("device", "budget"), [("cpu", 10_000.0), ("cuda", 100.0)])
def test_no_profile_where_there_is_nothing_to_replay_or_no_time(tune: Tune, device: str, budget: float) -> None:
    _, machine = tune([FakeLever("a", 0.5)], factors(a=0.5), device=device, budget=budget)
    assert not any(special.profiled for special in machine.specials)


class Workers(FakeLever):
    """A number that goes in without a search, and is doubled while it is too small."""

    def variants(self, context: Context) -> list[Settings]:
        return [{"n": 2 * context.active[self.name]["n"]}] if self.name in context.active else [{"n": 4}]

    def short(self, context: Context) -> bool:
        return context.active[self.name]["n"] < 8


@pytest.mark.parametrize(("with_eight", "in_use"), [(20.0, 8), (39.9, 4)])
def test_a_number_that_was_too_small_is_enlarged_where_that_wins(tune: Tune, with_eight: float, in_use: int) -> None:
    def step_ms(uses: Uses) -> float:
        workers = {4: 40.0, 8: with_eight}[uses["w"]["n"]] if "w" in uses else 100.0
        return workers * (0.5 if "a" in uses else 1.0)

    found, machine = tune([Workers("w", 0.6), FakeLever("a", 0.5)], step_ms)
    assert machine.tries()[:2] == ["a + w", "w"] or machine.tries()[:2] == ["w + a", "w"]
    assert {one.lever: one.settings for one in found.kept} == {"w": {"n": in_use}, "a": {}}
    assert "w" not in found.dropped


# levers that need others


def _crowded(uses: Uses) -> float:
    """Workers that take the cores of the model's threads."""
    return (60.0 if "threads" in uses else 105.0) if "workers" in uses else 100.0


def test_a_lever_that_wins_nothing_is_tried_beside_what_may_help_it(tune: Tune) -> None:
    """Seen on a CPU with two cores: two workers 0.92 times, with one thread for the model 1.7 times."""
    workers, threads = single("workers", 0.8, helped_by=("threads", "absent")), FakeLever("threads", 0.001)
    found, machine = tune([workers, threads], _crowded)
    assert kept(found) == ["workers", "threads"] and found.speedup == pytest.approx(100 / 60)
    assert machine.tries()[:2] == ["workers", "workers + threads"]
    assert not {"workers", "threads"} & found.dropped.keys()


def test_no_help_is_asked_for_what_wins_crashes_or_has_none(tune: Tune) -> None:
    threads = FakeLever("threads", 0.001)
    found, machine = tune([single("workers", 0.8, helped_by=("threads",)), threads], factors(workers=0.5))
    assert kept(found) == ["workers"] and "workers + threads" not in machine.tries()
    found, machine = tune([single("workers", 0.8), threads], _crowded)
    assert not kept(found) and "workers + threads" not in machine.tries()
    found, machine = tune(
        [single("workers", 0.8, helped_by=("threads",)), threads],
        _crowded,
        outcome=lambda uses: ("crashed", "x") if "workers" in uses else ("measured", ""),
    )
    assert not kept(found) and "workers + threads" not in machine.tries()


def test_help_that_does_not_help(tune: Tune) -> None:
    workers, threads = single("workers", 0.8, helped_by=("threads",)), FakeLever("threads", 0.001)
    found, machine = tune([workers, threads], factors(workers=1.2))
    assert not kept(found) and machine.tries().count("workers + threads") == 1
    assert found.dropped["workers"].ratio == pytest.approx(1 / 1.2)
