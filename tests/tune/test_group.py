"""Several levers in one trial, and the search for settings that are numbers."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import LOSSES, FakeLever, Machine, Tune, Uses, factors, kept, resumed, single, with_noise

from hotlap.levers import all_levers
from hotlap.levers._base import Applies
from hotlap.records import run as records
from hotlap.records.diagnosis import Place
from hotlap.tune.attempt import next_variant
from hotlap.tune.candidates import Candidate
from hotlap.tune.evidence import Evidence
from hotlap.tune.group import parts
from hotlap.tune.remember import Remembered, learned

FIVE = [FakeLever(name, share) for name, share in (("a", 0.5), ("b", 0.4), ("c", 0.3), ("d", 0.2), ("e", 0.1))]


def test_levers_that_go_together_are_tried_at_once(tune: Tune) -> None:
    """Two baselines, one trial of all, one without each, BBA: eleven processes for five levers, not the nineteen of
    one after another."""
    found, machine = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.95))
    assert machine.tries() == ["a + b + c + d + e"] and sorted(kept(found)) == list("abcde")
    assert len(machine.done) == 2 + 1 + 5 + 3
    assert found.speedup == pytest.approx(1 / (0.5 * 0.8 * 0.9 * 0.9 * 0.95))


def test_what_each_is_worth_is_measured_without_it(tune: Tune) -> None:
    found, _ = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.95))
    for item, factor in zip(found.kept, (0.5, 0.8, 0.9, 0.9, 0.95), strict=True):
        assert item.measured == item.leave_one_out == pytest.approx(1 / factor)
        assert item.together == tuple("abcde") and item.parity.ok


def test_passengers_and_brakes_of_a_group_are_taken_out(tune: Tune) -> None:
    found, _ = tune(FIVE, factors(a=0.4, b=1.0, c=1.2, d=0.9))
    assert sorted(kept(found)) == ["a", "d"]
    assert found.dropped["b"].why.startswith("no gain beside the others")
    assert found.dropped["c"].why.startswith("slower beside the others")
    assert found.speedup == pytest.approx(1 / (0.4 * 0.9))


@pytest.mark.parametrize("bad", list("abcde"))
def test_the_one_that_breaks_a_group_is_found(tune: Tune, bad: str) -> None:
    found, machine = tune(
        FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: ("crashed", "boom") if bad in uses else ("measured", ""),
    )  # fmt: skip
    assert sorted(kept(found)) == sorted(set("abcde") - {bad})
    assert found.dropped[bad].why == "crashed: boom"
    assert len(machine.tries()) <= 7, "halves, not one after another"


class Long(FakeLever):
    """Helps where a step is long."""

    def applies(self, context: Any) -> Applies:
        return Applies(context.diagnosis.step_ms > 70, "the step is short")


def test_one_that_can_not_help_any_more_once_others_are_in_is_told(tune: Tune) -> None:
    """It crashed with them, and was neither kept nor dropped."""
    levers = [FakeLever("a", 0.6), FakeLever("x", 0.5), Long("bulky", 0.3), FakeLever("y", 0.2)]
    found, _ = tune(
        levers, factors(a=0.5, x=0.9, bulky=0.9, y=0.9),
        outcome=lambda uses: ("crashed", "boom") if "bulky" in uses else ("measured", ""),
    )  # fmt: skip
    assert sorted(kept(found)) == ["a", "x", "y"] and found.dropped["bulky"].why == "the step is short"


class Needing(FakeLever):
    """Goes with another one only."""

    def applies(self, context: Any) -> Applies:
        return Applies("a" in context.active, "it needs a")


@pytest.mark.parametrize(("budget", "told"), [
    (38.0, "it needs a"), (60.0, "the budget ended before it was tried to the end"),
])  # fmt: skip
def test_of_one_that_needs_another_it_is_told_what_was_missing(tune: Tune, budget: float, told: str) -> None:
    """All crash together; with the smaller budget nothing is in when it ends, with the larger one `a` is."""
    levers = [FakeLever("a", 0.6), FakeLever("b", 0.5), Needing("needing", 0.4), FakeLever("c", 0.3)]
    found, machine = tune(
        levers, factors(a=0.1, b=0.9), budget=budget,
        outcome=lambda uses: ("crashed", "boom") if "c" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries()[0] == "a + b + needing + c"
    assert found.dropped["needing"].why.startswith(told)
    assert {*found.dropped, *kept(found)} == {"a", "b", "needing", "c"}


COMPILER = FakeLever("compile", 0.6, errors=all_levers()["compile"].errors)
NHWC = FakeLever("nhwc", 0.35, errors=("view size is not",))


@pytest.mark.parametrize("named", [True, False])
def test_an_error_that_names_the_compiler_is_its(tune: Tune, named: bool) -> None:
    """It costs one trial; the others are the next set."""
    what = "torch.compile with aot_autograd does not support double backward" if named else "KeyError: 3"
    found, machine = tune(
        [COMPILER, *FIVE], factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: ("crashed", what) if "compile" in uses else ("measured", ""),
    )  # fmt: skip
    assert sorted(kept(found)) == list("abcde")
    assert found.dropped["compile"].why == f"crashed: {what}"
    assert (machine.tries()[1] == "a + b + c + d + e") and (len(machine.tries()) == 2) is named


def test_an_error_that_a_lever_names_is_its_also_where_the_compiler_tells_it(tune: Tune) -> None:
    """The VAE of ctallec/world-models: of its 150 s five trials went to find out that channels-last was at fault."""

    def outcome(uses: Uses) -> tuple[str, str]:
        plain = "RuntimeError: view size is not compatible"
        what = f"torch._dynamo.exc.TorchRuntimeError: {plain}" if "compile" in uses else plain
        return ("crashed", what) if "nhwc" in uses else ("measured", "")

    found, machine = tune(
        [COMPILER, NHWC, *FIVE], factors(compile=0.5, a=0.5, b=0.8, c=0.9, d=0.9, e=0.9), outcome=outcome
    )
    assert machine.tries() == ["compile + a + b + nhwc + c + d + e", "compile + a + b + c + d + e"]
    assert sorted(kept(found)) == ["a", "b", "c", "compile", "d", "e"]
    assert found.dropped["nhwc"].why.startswith("crashed: torch._dynamo") and found.dropped["nhwc"].trial == 2


@pytest.mark.parametrize("alone", [False, True])
def test_one_that_is_blamed_for_what_comes_without_it_too_is_tried_again(tune: Tune, alone: bool) -> None:
    found, machine = tune(
        [NHWC, FakeLever("c", 0.3)] if alone else [NHWC, *FIVE],
        factors(nhwc=0.7, a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: ("crashed", "view size is not compatible") if "c" in uses else ("measured", ""),
    )
    assert sorted(kept(found)) == (["nhwc"] if alone else ["a", "b", "d", "e", "nhwc"])
    assert found.dropped["c"].why == "crashed: view size is not compatible"
    assert machine.tries()[-1] == "nhwc"


AT_VIEW, AT_LOSS = Place(file="/w/vae.py", line=54, function="forward"), Place(file="/w/train.py", line=9)


@pytest.mark.parametrize(("same", "again"), [(True, True), (False, False)])
def test_the_compilers_words_for_what_the_script_dies_of_by_itself_are_known_by_its_line(
    tune: Tune, same: bool, again: bool
) -> None:
    found, machine = tune(
        [COMPILER, *FIVE], factors(compile=0.5, a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: (
            ("crashed", "_dynamo: odd shapes" if "compile" in uses else "ValueError: odd") if "d" in uses
            else ("measured", "")
        ),
        where=lambda uses: AT_VIEW if same or "compile" in uses else AT_LOSS,
    )  # fmt: skip
    assert found.dropped["d"].why == "crashed: ValueError: odd"
    assert ("compile" in kept(found)) is again and ("compile" in machine.tries()) is again
    assert again or found.dropped["compile"].why == "crashed: _dynamo: odd shapes"


def test_a_crash_that_a_lever_is_blamed_for_stands_where_the_budget_ends_before_the_rest_is_tried(tune: Tune) -> None:
    """SIREN's signed distance function: the table said that the budget had ended before `compile` was tried."""
    what = "torch.compile with aot_autograd does not currently support double backward"
    found, machine = tune(
        [COMPILER, *FIVE], factors(), budget=45.0,
        outcome=lambda uses: ("crashed", what) if "compile" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries()[0] == "compile + a + b + c + d + e" and "compile" not in found.not_done
    assert (found.dropped["compile"].why, found.dropped["compile"].trial) == (f"crashed: {what}", 2)
    assert found.dropped["a"].why == "the budget ended before it was tried to the end", "the crash is explained"


def test_that_it_is_not_to_blame_after_all_stands_there_too(tune: Tune) -> None:
    found, machine = tune(
        [NHWC, *FIVE], factors(), budget=45.0,
        outcome=lambda uses: ("crashed", "view size is not compatible") if "c" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries() == ["a + b + nhwc + c + d + e", "a + b + c + d + e"]
    assert found.dropped["nhwc"].why == "the budget ended before it was tried to the end"
    assert "nhwc" in found.not_done


def test_what_a_set_died_of_stands_where_the_budget_ends_before_the_one_at_fault_is_found(tune: Tune) -> None:
    found, machine = tune(
        FIVE, factors(), budget=45.0, outcome=lambda uses: ("crashed", "boom") if uses else ("measured", "")
    )
    assert machine.tries() == ["a + b + c + d + e", "a + b + c"]
    untried = "the budget ended before it was tried to the end"
    assert (found.dropped["a"].why, found.dropped["a"].trial) == (f"{untried}; a + b + c crashed together: boom", 3)
    assert (found.dropped["e"].why, found.dropped["e"].trial) == (
        f"{untried}; a + b + c + d + e crashed together: boom", 2,
    )  # fmt: skip


def test_that_some_settings_are_slower_stands_where_no_others_were_tried(tune: Tune) -> None:
    found, _ = tune([COMPILE, FakeLever("bf16", 0.4)], factors(compile=9.0), budget=35.0)
    slower = "with compile (mode=reduce-overhead) slower: 9 times the step with CUDA graphs"
    assert found.dropped["compile"].why.startswith(f"the budget ended before it was tried to the end; {slower}")
    assert "compile" in found.not_done


def test_a_lever_that_could_not_be_put_in_is_known_by_name(tune: Tune) -> None:
    found, machine = tune(
        FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: ("refused", "c could not be put in: no") if "c" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries() == ["a + b + c + d + e", "a + b + d + e"], "c is not tried alone: it said why it can't be"
    assert sorted(kept(found)) == list("abde") and found.dropped["c"].why == "refused: c could not be put in: no"


def test_one_that_says_no_by_name_is_tried_with_its_other_settings(tune: Tune) -> None:
    """As where what is in the way is that nothing can be compiled."""
    lever = FakeLever("cache", 0.9, ({"compile": True}, {"compile": False}))

    def outcome(uses: Uses) -> tuple[str, str]:
        no = uses.get("cache", {}).get("compile")
        return ("refused", "cache could not be compiled") if no else ("measured", "")

    found, machine = tune([lever, FakeLever("bf16", 0.4)], factors(cache=0.1, bf16=0.8), outcome=outcome)
    assert {one.lever: one.settings for one in found.kept} == {"cache": {"compile": False}, "bf16": {}}
    assert machine.tries() == ["cache + bf16"] * 2


def test_of_two_the_one_that_was_not_refused_is_tried_alone(tune: Tune) -> None:
    """nanoGPT on an H200: the lever that was refused cost 39 and 26 of 394 seconds."""
    found, machine = tune(
        [FakeLever("attention", 0.5), FakeLever("compile", 0.4)], factors(compile=0.7),
        outcome=lambda uses: (
            ("refused", "attention could not be put in: none was found") if "attention" in uses else ("measured", "")
        ),
    )  # fmt: skip
    assert machine.tries() == ["attention + compile", "compile"] and kept(found) == ["compile"]


def test_a_compiler_that_takes_too_long_is_named_and_not_waited_for_twice(tune: Tune) -> None:
    """DLRM on an H200: 105 s until the first step."""
    found, machine = tune(
        [FakeLever("compile", 0.5, ({"mode": "reduce-overhead"}, {"mode": "default"})), *FIVE],
        factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.9),
        outcome=lambda uses: ("timeout", "did not end within 84 s") if "compile" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries()[1] == "a + b + c + d + e" and sum("compile" in tried for tried in machine.tries()) == 1
    assert sorted(kept(found)) == list("abcde")
    assert found.dropped["compile"].why.startswith("not compiled in time: the trial did not end within 84 s")


def test_what_wins_nothing_before_the_second_epoch_waits_for_the_others(tune: Tune) -> None:
    late = FakeLever("cache", 0.6)
    late.late = True  # type: ignore[misc]
    found, machine = tune([late, FakeLever("a", 0.5), FakeLever("b", 0.4)], factors(a=0.5, b=0.8, cache=0.7))
    assert machine.tries()[:2] == ["a + b", "cache"] and sorted(kept(found)) == ["a", "b", "cache"]


NONE_FOUND = "no hand-written attention was found"


def no_attention(uses: Uses) -> dict[str, str]:
    return {"attention": NONE_FOUND} if "attention" in uses else {}


TRIO = [FakeLever("attention", 0.5), FakeLever("compile", 0.4), FakeLever("tf32", 0.3)]


def test_a_lever_that_leaves_itself_out_costs_no_trial(tune: Tune) -> None:
    """A U-Net on an H100: two refusals took 68 of 105 s, and nothing was tried."""
    found, machine = tune(TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention)
    assert machine.tries() == ["attention + compile + tf32"]
    assert sorted(kept(found)) == ["compile", "tf32"] and found.speedup == pytest.approx(1 / (0.5 * 0.8))
    assert found.dropped["attention"].why == f"refused: {NONE_FOUND}"
    assert f"left out  attention  {NONE_FOUND}" in machine.said
    assert all(item.together == ("compile", "tf32") for item in found.kept)


def test_no_later_run_has_it(tune: Tune) -> None:
    _, machine = tune(TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention)
    later = machine.done[machine.tries().index("attention + compile + tf32") + 3 :]
    assert later and all("attention" not in {use.name for use in trial.asked} for trial in later)
    assert all(special.slow_ms is None for special in machine.specials[-3:])


def test_where_only_one_is_left_it_is_judged_as_if_tried_alone(tune: Tune) -> None:
    pair = [FakeLever("attention", 0.5), FakeLever("compile", 0.4)]
    found, machine = tune(pair, factors(compile=0.99), left_out=no_attention)
    assert machine.tries() == ["attention + compile"], "compile was measured, and won nothing"
    assert found.dropped["compile"].why == "no gain" and not found.kept
    found, machine = tune(pair, factors(compile=0.7), left_out=no_attention)
    assert machine.tries() == ["attention + compile"] and kept(found) == ["compile"]
    assert found.kept[0].together == ()


def test_parity_that_fails_beside_a_lever_that_was_in_at_first_is_looked_at_without_it(tune: Tune) -> None:
    """The first steps are not those of the levers that are left."""
    seen: list[int] = []

    def evidence(uses: Uses) -> Evidence:
        seen.extend([1] if "compile" in uses else [])
        return Evidence(tuple((1.5 * x if len(seen) == 1 else x,) for (x,) in LOSSES))

    found, machine = tune(TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention, evidence_of=evidence)
    assert machine.tries() == ["attention + compile + tf32", "compile + tf32"]
    assert sorted(kept(found)) == ["compile", "tf32"]


def test_parity_that_fails_beside_a_lever_that_changed_nothing_is_looked_at_in_parts(tune: Tune) -> None:
    def evidence(uses: Uses) -> Evidence:
        return Evidence(tuple((1.5 * x if "compile" in uses else x,) for (x,) in LOSSES))

    found, machine = tune(
        TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention, evidence_of=evidence, were_in=False
    )
    assert machine.tries()[:2] != ["attention + compile + tf32", "compile + tf32"] and kept(found) == ["tf32"]
    assert found.dropped["attention"].why == f"nothing to change: {NONE_FOUND}"
    assert found.dropped["compile"].why.startswith("parity")


def test_a_trial_that_crashes_after_one_left_itself_out_is_parted_without_it(tune: Tune) -> None:
    found, machine = tune(
        [*TRIO, FakeLever("fused", 0.2)], factors(tf32=0.8, fused=0.9), left_out=no_attention,
        outcome=lambda uses: ("crashed", "boom") if "compile" in uses else ("measured", ""),
    )  # fmt: skip
    assert machine.tries() == ["attention + compile + tf32 + fused", "tf32 + fused + attention", "compile"]
    assert sorted(kept(found)) == ["fused", "tf32"] and found.dropped["compile"].why == "crashed: boom"
    assert found.dropped["attention"].why == f"refused: {NONE_FOUND}"


def beside_compile(uses: Uses) -> dict[str, str]:
    return {"constants": "something is compiled"} if "compile" in uses and "constants" in uses else {}


@pytest.mark.parametrize("others", [(), (FakeLever("tf32", 0.3),)])
def test_what_leaves_itself_out_beside_the_compiler_is_tried_without_it(
    tune: Tune, others: tuple[FakeLever, ...]
) -> None:
    """A recommendation model on an H200: its constants were the compiler's, which did not end, and then no one's."""
    found, machine = tune(
        [FakeLever("constants", 0.5), FakeLever("compile", 0.6), *others], factors(constants=0.5, tf32=0.8),
        left_out=beside_compile,
        outcome=lambda uses: ("timeout", "did not end") if "compile" in uses else ("measured", ""),
    )  # fmt: skip
    assert len(machine.tries()) == 2 and "constants" in machine.tries()[1] and "compile" not in machine.tries()[1]
    assert sorted(kept(found)) == sorted(["constants", *(one.name for one in others)])
    assert "constants" not in found.dropped and "compile" in found.dropped


def test_a_resumed_tune_knows_a_trial_that_went_on_without_a_lever(tune: Tune) -> None:
    _, machine = tune(TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention)
    found, again = tune(TRIO, factors(compile=0.5, tf32=0.8), **resumed(machine))
    assert sorted(kept(found)) == ["compile", "tf32"]
    assert all(trial.purpose == "confirm" for trial in again.done if trial.id not in again.recalled)


def test_an_earlier_tunes_refusal_is_remembered(tune: Tune) -> None:
    found, machine = tune(TRIO, factors(compile=0.5, tf32=0.8), left_out=no_attention)
    known = learned(Remembered(), found.kept, found.dropped.values(), machine.done, True)
    assert [one.lever for one in known.failed] == ["attention"]


COMPILE = FakeLever("compile", 0.6, ({"mode": "reduce-overhead"}, {"mode": "default"}))


def test_cuda_graphs_that_make_a_set_much_slower_are_blamed_and_then_done_without(tune: Tune) -> None:
    """A mixture of experts on an H100: 1133 ms a step in place of 125."""

    def step_ms(uses: Uses) -> float:
        factor = {"reduce-overhead": 9.0, "default": 0.9, None: 1.0}[uses.get("compile", {}).get("mode")]
        return 100.0 * factor * (0.8 if "bf16" in uses else 1.0) * (0.9 if "fused" in uses else 1.0)

    levers = [COMPILE, FakeLever("bf16", 0.4), FakeLever("fused", 0.3)]
    found, machine = tune(levers, step_ms)
    assert machine.tries() == ["compile + bf16 + fused", "bf16 + fused", "compile"]
    assert sorted(kept(found)) == ["bf16", "compile", "fused"]
    assert next(one for one in found.kept if one.lever == "compile").settings == {"mode": "default"}


@pytest.mark.parametrize(("recompiles", "tries"), [(7, ["compile + x + y + z", "x + y + z"]), (1, None)])
def test_a_compiler_that_never_comes_to_rest_is_blamed(tune: Tune, recompiles: int, tries: list[str] | None) -> None:
    levers = [FakeLever("compile", 0.6), FakeLever("x", 0.5), FakeLever("y", 0.4), FakeLever("z", 0.3)]
    row = records.CompiledFunction(file="m.py", function="Model.forward", recompiles=recompiles)
    found, machine = tune(levers, factors(compile=4.0, x=0.8, y=0.8, z=0.8), compiled=lambda uses: (row,))
    assert tries in (None, machine.tries()) and sorted(kept(found)) == ["x", "y", "z"]
    assert found.dropped["compile"].why.startswith("slower")


def test_a_try_is_ended_when_its_steps_take_three_times_the_bare_commands(tune: Tune) -> None:
    _, machine = tune(TRIO, factors(compile=0.5))
    tried = [special for special in machine.specials if special.slow_ms]
    assert tried[0].trying == ("attention", "compile", "tf32") and tried[0].slow_ms == pytest.approx(300.0)
    _, machine = tune([FakeLever("batch", 0.5, risk="semantic", resizes_step=True)], factors(batch=0.5), semantic=True)
    assert not any(special.slow_ms for special in machine.specials), "it is to be longer"


def test_parity_of_a_group_is_parity_of_all_and_a_cheat_does_not_hide_in_it(tune: Tune) -> None:
    def evidence(uses: Uses) -> Evidence:
        return Evidence(tuple((1.5 * x if "d" in uses else x,) for (x,) in LOSSES))

    found, _ = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.5, e=0.9), evidence_of=evidence)
    assert sorted(kept(found)) == list("abce") and found.dropped["d"].why.startswith("parity: ")
    assert all(item.parity.level == "bitwise" for item in found.kept)


def test_a_group_that_wins_nothing_is_parted(tune: Tune) -> None:
    """One helps as much as another harms."""
    found, _ = tune([FakeLever("good", 0.5), FakeLever("bad", 0.4)], factors(good=0.5, bad=2.0))
    assert kept(found) == ["good"] and found.dropped["bad"].why == "slower"


def test_levers_whose_number_is_searched_or_that_change_training_stay_apart(tune: Tune) -> None:
    levers = [single("number", 0.5), FakeLever("x", 0.4), FakeLever("y", 0.3), FakeLever("batch", 0.2, risk="semantic")]
    _, machine = tune(levers, factors(number=0.5, x=0.7, y=0.7, batch=0.7), semantic=True)
    assert machine.tries() == ["number", "x + y", "batch"]


def test_one_that_another_makes_needless_waits(tune: Tune) -> None:
    class Needless(FakeLever):
        def share(self, context: Any) -> float:
            return 0.001 if "strong" in context.active else 0.4

    found, machine = tune([FakeLever("strong", 0.6), Needless("weak", 0.4)], factors(strong=0.4))
    assert machine.tries() == ["strong"] and "at most 0.1%" in found.dropped["weak"].why


def test_one_that_needs_another_is_not_left_alone(tune: Tune) -> None:
    class Needs(FakeLever):
        def applies(self, context: Any) -> Any:
            applies = super().applies(context)
            return applies._replace(yes="workers" in context.active, why="needs workers")

    levers = [single("workers", 0.5), Needs("prefetch", 0.4)]
    found, machine = tune(levers, _only_with_prefetch)
    assert sorted(kept(found)) == ["prefetch", "workers"]
    assert "without workers" not in [trial.purpose for trial in machine.done]


def _only_with_prefetch(uses: Uses) -> float:
    return 100.0 * (0.9 if "workers" in uses else 1.0) * (0.5 if "prefetch" in uses else 1.0)


class After(FakeLever):
    """Does its work on what another lever makes."""

    def applies(self, context: Any) -> Any:
        return super().applies(context)._replace(yes="maker" in context.active, why="what the maker makes")


@pytest.mark.parametrize(
    ("broken", "left", "tries"),
    [
        (lambda uses: False, ["a", "maker", "user"], ["maker + a + user"]),
        (lambda uses: "user" in uses, ["a", "maker"], ["maker + a + user", "maker + a", "user"]),
        (lambda uses: "maker" in uses, ["a"], ["maker + a + user", "maker + a", "maker", "a"]),
        (lambda uses: "a" in uses, ["maker", "user"], ["maker + a + user", "maker + a", "maker", "a", "user"]),
    ],
)
def test_one_that_works_on_what_another_makes_is_tried_with_it(
    tune: Tune, broken: Any, left: list[str], tries: list[str]
) -> None:
    """Not in a trial after it; and where the other fails, not at all."""
    found, machine = tune(
        [After("user", 0.1), FakeLever("maker", 0.5), FakeLever("a", 0.3)], factors(maker=0.5, a=0.7, user=0.8),
        outcome=lambda uses: ("crashed", "boom") if broken(uses) else ("measured", ""),
    )  # fmt: skip
    assert sorted(kept(found)) == left and machine.tries() == tries


def test_a_compiler_at_fault_takes_those_with_it_that_need_it(tune: Tune) -> None:
    class Needs(FakeLever):
        def applies(self, context: Any) -> Any:
            return super().applies(context)._replace(yes="compile" in context.active, why="needs compile")

    levers = [FakeLever("compile", 0.5), Needs("joins", 0.2), FakeLever("a", 0.3)]
    found, machine = tune(
        levers, factors(compile=0.5, a=0.7, joins=0.8),
        outcome=lambda uses: ("crashed", "boom") if "joins" in uses else ("measured", ""),
    )  # fmt: skip
    assert sorted(kept(found)) == ["a", "compile"] and found.dropped["joins"].why == "crashed: boom"
    assert machine.tries() == ["compile + a + joins", "a", "compile + joins", "compile", "joins"]


@pytest.mark.parametrize(("beside", "tries"), [(0.9, ["strong + steady"]), (0.5, ["strong"])])
def test_what_wins_so_many_ms_is_judged_by_what_the_others_leave(tune: Tune, beside: float, tries: list[str]) -> None:
    """0.7 ms are 0.7% of the bare command's 100; of what the other is likely to leave, 31 or 71 ms, more or less
    than 2%."""

    class Steady(FakeLever):
        def share(self, context: Any) -> float:
            return float(context.of_left(0.7 / context.diagnosis.step_ms))

    _, machine = tune([FakeLever("strong", beside), Steady("steady", 0.0)], factors(strong=0.4, steady=0.99))
    assert machine.tries()[0] == tries[0]


def test_small_gains_add_up_in_a_group(tune: Tune) -> None:
    """Each is lost in the noise by itself; all together are not."""
    levers = [FakeLever(name, 0.05) for name in "abcdefgh"]
    found, machine = tune(levers, with_noise(factors(**dict.fromkeys("abcdefgh", 0.97)), 0.008))
    assert machine.tries() == ["a + b + c + d + e + f + g + h"] and found.speedup and found.speedup > 1.2


def test_a_budget_that_ends_in_leave_one_out_keeps_the_group_and_says_so(tune: Tune) -> None:
    found, machine = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.9, e=0.95), budget=100.0)
    assert sorted(kept(found)) == list("abcde") and found.gain
    assert "leave-one-out of" in found.not_done and machine.now - 1000.0 <= 100.0
    assert any(item.measured is None and item.leave_one_out is None for item in found.kept)
    assert without(machine)[:2] == ["without e + d", "without e"], "those first that are expected to be worth least"


def without(machine: Machine) -> list[str]:
    return [trial.purpose for trial in machine.done if trial.purpose.startswith("without")]


def test_passengers_go_together_where_no_time_is_left_for_each(tune: Tune) -> None:
    found, machine = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=1.0, e=0.99), budget=105.0)
    assert without(machine)[0] == "without e + d"
    assert sorted(kept(found)) == list("abc") and found.speedup == pytest.approx(1 / (0.5 * 0.8 * 0.9))
    assert found.dropped["d"].why == found.dropped["e"].why
    assert found.dropped["d"].why.startswith("no gain beside the others: without e + d 1.01 of the time")


def test_small_gains_that_come_to_something_stay(tune: Tune) -> None:
    found, machine = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=0.985, e=0.985), budget=105.0)
    assert without(machine)[0] == "without e + d"
    assert {"d", "e"} - set(kept(found)) <= {"e"}, "what one is worth by itself is another question"
    assert any(line.startswith("worth  e + d  1.03×") for line in machine.said)


def test_with_time_for_each_none_are_left_out_together(tune: Tune) -> None:
    _, machine = tune(FIVE, factors(a=0.5, b=0.8, c=0.9, d=1.0, e=1.0))
    assert not any("+" in purpose for purpose in without(machine))


def candidates(*names: str, tolerance: float = 0.0) -> list[Candidate]:
    return [Candidate(FakeLever(name, 0.5, tolerance=tolerance), [{}], 2.0, "share") for name in names]


@given(st.integers(2, 12), st.booleans())
def test_parts_are_two_and_lose_nothing(count: int, slow: bool) -> None:
    group = candidates(*[f"n{k}" for k in range(count)])
    first, second = parts(group, slow)
    assert first and second
    assert sorted(one.lever.name for one in (*first, *second)) == sorted(one.lever.name for one in group)


def test_a_compiler_is_the_first_suspect() -> None:
    first, second = parts(candidates("compile", "fused", "tf32"), slow=False)
    assert [one.lever.name for one in first] == ["fused", "tf32"] and second[0].lever.name == "compile"
    rounds = [*candidates("exact"), *candidates("coarse", tolerance=0.02)]
    assert parts(rounds, slow=False)[1][0].lever.name == "coarse"


# numbers


def climb(values: dict[int, float], listed: list[int]) -> tuple[list[int], int]:
    """The numbers that are tried, and the best of them."""
    variants = [{"n": n, "pin": True} for n in listed]
    measured: dict[int, float] = {}
    while (at := next_variant(variants, measured, search=True)) is not None and len(measured) < 12:
        measured[at] = values[listed[at]]
    return [listed[at] for at in measured], listed[max(measured, key=lambda at: measured[at])]


def test_the_search_goes_up_while_it_gains_and_stops_where_it_is_flat() -> None:
    values = {1: 1.2, 2: 1.5, 4: 2.0, 8: 2.01, 16: 1.9}
    assert climb(values, [2, 4, 8, 16, 1]) == ([2, 4, 8], 8)


def test_the_search_goes_down_where_more_is_worse() -> None:
    assert climb({1: 1.1, 2: 1.9, 4: 1.5, 8: 1.2}, [4, 8, 2, 1]) == ([4, 8, 2, 1], 2)


def test_settings_that_fail_give_way_to_the_next_of_the_list() -> None:
    assert climb({2: 0.0, 4: 1.5, 8: 1.4}, [2, 4, 8])[1] == 4


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True), st.integers(1, 64), st.integers(5, 60))
def test_no_number_is_tried_twice_and_the_first_is_no_better(listed: list[int], peak: int, slope: int) -> None:
    values = {n: 3.0 * math.exp(-slope / 10 * abs(math.log2(n / peak)) - abs(n - peak) * 0.03) + 1.1 for n in listed}
    tried, best = climb(values, listed)
    assert len(tried) == len(set(tried)) <= len(listed)
    assert values[best] >= values[listed[0]]


def test_a_lever_whose_settings_are_no_number_stops_at_the_first_that_works() -> None:
    variants = [{"mode": "wild"}, {"mode": "tame"}]
    assert next_variant(variants, {}, search=False) == 0
    assert next_variant(variants, {0: 0.0}, search=False) == 1
    assert next_variant(variants, {0: 1.5}, search=False) is None
    assert next_variant(variants, {0: 0.0, 1: 0.0}, search=False) is None
