"""Short steps of which a sample is looked at: the script does what it does without hotlap, and no step is lost."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from hotlap.agent.core import Agent
from hotlap.agent.step_sampling import EVERY, OFTEN, RARELY, until_full
from hotlap.records.run import Step
from hotlap.records.session import LeverUse, Session

from .harness import Ran, Runner, check_clean, check_lines, check_same
from .test_faults import A_DEVICE, HOOKS, SCALED, SPARE, TRANSFERS, UNSAMPLED
from .test_loops import CASES, Case

SOON = """
import hotlap.agent.step_sampling as sampling, hotlap.agent.hooks.forward as forward
sampling.FIRST, sampling.OFTEN, sampling.SHORT_MS, sampling.VERY_SHORT_MS, sampling.MOST_WAITING = 4, 4, 0, 0, 8
forward.SETTLED = forward.SETTLED_INFERENCE = 1
"""
"""What a run does after hundreds of steps, after a few; all steps are long."""
FULL = ("jacobian",)
"""Kinds of loops all of whose steps are looked at."""
ENDED = ("gan", "together", "lbfgs", "sub", "several")
"""Kinds of loops in which more than one update, or more than an update, ends a step."""


def sampled_run(runner: Runner, *argv: str, before: str = "", fail_in: str | None = None) -> Ran:
    ran = runner.forked(*argv, before=SOON + before, fail_in=fail_in, every_step=False)
    check_lines(ran.folder)
    return ran


def sampled(runner: Runner, *argv: str, before: str = "") -> Ran:
    """The same, of a script that is left as it is."""
    return runner.untouched(*argv, before=before, ours=SOON, every_step=False)


def unsampled(steps: list[Step]) -> list[int]:
    return [step.step for step in steps if step.phases is None]


# which steps


def full_steps(count: int, every: int) -> list[int]:
    return [step for step in range(count) if until_full(step, every) == 0]


SIZES = (OFTEN, EVERY, RARELY)


@pytest.mark.parametrize("every", SIZES)
def test_of_every_so_many_steps_one_is_looked_at(every: int) -> None:
    found = full_steps(100 * every, every)
    assert [step // every for step in found] == list(range(100))
    until = [until_full(step, every) for step in range(found[0], found[1])]
    assert until == [0, *range(found[1] - found[0] - 1, 0, -1)]


def test_ranks_that_look_at_few_steps_look_at_those_of_the_others() -> None:
    often, every, rarely = (set(full_steps(200 * RARELY, size)) for size in SIZES)
    assert rarely < every < often


@pytest.mark.parametrize(("small", "large"), [(OFTEN, EVERY), (OFTEN, RARELY), (EVERY, RARELY)])
def test_each_of_the_steps_is_as_likely(small: int, large: int) -> None:
    """To be one of the fewer, wherever in its larger block its smaller one lies; and wherever that one was before."""
    found = full_steps(2000 * large, large)
    places = [step % large // small for step in found]
    of = large // small
    for seen, kinds in ((Counter(places), of), (Counter(pairwise(places)), of * of)):
        expected = len(found) / kinds
        assert len(seen) == kinds
        assert all(abs(count - expected) < 5 * expected**0.5 for count in seen.values())


@pytest.mark.parametrize("every", SIZES)
def test_where_a_step_lies_says_nothing_of_the_next(every: int) -> None:
    found = [step % every * 8 // every for step in full_steps(4000 * every, every)]
    for apart in (1, 2, 3, 4, 8):
        seen = Counter(zip(found, found[apart:], strict=False))
        assert len(seen) == 64
        assert all(abs(count - 4000 / 64) < 5 * (4000 / 64) ** 0.5 for count in seen.values())


@pytest.mark.parametrize("every", SIZES)
def test_the_steps_fall_in_with_no_period(every: int) -> None:
    """Of what a script does every n steps, its share of the steps is looked at."""
    found = full_steps(2000 * every, every)
    for period in range(2, 101):
        seen = Counter(step % period for step in found)
        expected = len(found) / period
        assert all(abs(seen[at] - expected) < 6 * expected**0.5 for at in range(period)), period


def test_who_counts_steps_has_all_looked_at() -> None:
    session = Session(folder="/nowhere", package="", every_step=False)
    assert Agent(session).step_sampling.allowed
    for change in (
        {"every_step": True},
        {"steps": 9},
        {"profile_steps": 3},
        {"capture_steps": 3},
        {"probe_steps": 4},
        {"nudge": 0.1},
        {"redraw": 1},
    ):
        assert not Agent(dataclasses.replace(session, **change)).step_sampling.allowed


# every kind of loop

OTHERS = (
    *("SIGKILL", "SIGTERM", "compiled.py", "len", "lazy", "script", "passing", "patched", "own"),
    *("generator", "iterable", "folds 1", "checkpoint", "before", "inference_mode", "py raise"),
    "threads.py read",
)
"""Lines are lost by a kill (below); the others take long, or are like those that are here."""


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not any(other in case.argv for other in OTHERS)],
    ids=lambda case: case.argv,
)
def test_loop(case: Case, runner: Runner) -> None:
    argv = case.argv.split()
    ran = sampled(runner, *argv)
    steps = ran.steps
    assert len(steps) == case.steps
    assert {step.kind for step in steps} == {case.kind}
    assert [step.step for step in steps if step.evaluation] == list(case.evaluations)
    assert [step.step for step in steps if step.skipped] == list(case.skipped)
    if set(FULL) & set(argv):
        assert unsampled(steps) == []
    elif argv[0] in {"loader.py", "inference.py", "scaler.py", "evaluation.py"} or set(ENDED) & set(argv):
        assert len(unsampled(steps)) > 2
    for step in steps:
        if step.phases is not None and step.step >= case.known_from and not isinstance(case.samples, dict):
            assert step.samples == case.samples
            assert step.skipped or {name for name in case.phases if getattr(step.phases, name) > 0} == set(case.phases)


def test_steps_are_lost_by_a_kill_only(runner: Runner) -> None:
    ended, killed = (
        sampled_run(runner, "endings.py", *how) for how in (("exit", "", "150"), ("kill", "SIGKILL", "150"))
    )
    check_clean(ended)
    assert len(ended.steps) == 150
    assert 60 < len(unsampled(ended.steps)) < 150
    assert 150 - 8 - 2 * 4 < len(killed.steps) <= 150


WAIT = """
sampling.LONGEST_WAIT_NS, sampling.MOST_WAITING = {wait_ns}, 10**9
"""


@pytest.mark.parametrize(("ms", "wait_ms", "lost"), [(20, 10, 0), (4, 20, 8)])
def test_a_kill_among_long_steps_loses_those_of_a_moment(ms: int, wait_ms: int, lost: int, runner: Runner) -> None:
    """A step that lasts longer than lines may wait is written when it ends, be it looked at or not, and wherever among
    unsampled ones the process is killed. (The pace of a step of 1 s is that of one of 20 ms where lines wait 10.)"""
    before = SOON + WAIT.format(wait_ns=wait_ms * 1_000_000) + "sampling.OFTEN = 16\n"
    for last in (60, 61, 67, 75):
        argv = ("endings.py", "kill", "SIGKILL", str(last), str(ms))
        killed = runner.forked(*argv, before=before, every_step=False)
        check_lines(killed.folder)
        assert last - lost <= len(killed.steps) <= last
        assert len(unsampled(killed.steps)) > 30


def test_a_step_that_takes_much_longer_than_those_before_is_written(runner: Runner) -> None:
    """The first of the slow ones ends what was to be handed over later."""
    before = SOON + "sampling.OFTEN, sampling.LONGEST_WAIT_NS, sampling.MOST_WAITING = 64, 100_000_000, 10**9\n"
    killed = runner.forked("endings.py", "kill", "SIGKILL", "90", "0,85,120", before=before, every_step=False)
    check_lines(killed.folder)
    assert len(killed.steps) == 90
    assert len(unsampled(killed.steps[85:])) == 5


# what turns up in an unsampled step


@pytest.mark.parametrize(
    ("events", "evaluated"),  # 41 is unsampled, 42 is looked at
    [
        (("41:eval", "49:load", "54:infer", "58:fork", "62:copy"), [42, 50]),
        (("42:eval",), [43]),
        (("41:graded", "42:graded", "49:graded", "52:eval"), [42, 43, 50, 53]),
        (("41:part", "42:part", "49:part"), [42, 43, 50]),
        (("41:thread",), []),
        (("42:thread",), []),
    ],
    ids=["simple", "looked at", "graded", "part", "thread", "thread looked at"],
)
def test_a_loop_stays_simple(events: tuple[str, ...], evaluated: list[int], runner: Runner) -> None:
    ran = sampled(runner, "unsampled.py", "90", *events)
    assert len(ran.steps) == 90
    assert [step.step for step in ran.steps if step.evaluation] == evaluated
    assert ran.facts.optimizer_steps == 90
    assert ran.facts.backwards == 90
    if "thread" not in events[0]:  # it makes an optimizer
        assert len(unsampled(ran.steps[44:])) > 30


RARE = SOON + "sampling.RARELY, sampling.VERY_SHORT_MS, sampling.HANDED_OVER = 32, 1e9, 3\n"
"""Very short steps, handed over three at a time."""


def test_steps_that_are_handed_over_in_the_midst_of_others_are_all_there(runner: Runner) -> None:
    argv = ("unsampled.py", "150", "70:eval", "71:eval", "75:compile", "110:built")
    ran = runner.untouched(*argv, ours=RARE, every_step=False)
    assert len(ran.steps) == ran.facts.optimizer_steps == ran.facts.backwards == 150
    assert [step.step for step in ran.steps if step.evaluation] == [71, 72]
    assert [step.step for step in ran.steps if step.compiles] == [76]
    assert len(unsampled(ran.steps[:110])) > 90
    assert not unsampled(ran.steps[112:115])  # looked at again, for a while


def test_steps_of_a_scaler_that_are_handed_over_in_the_midst_of_others(runner: Runner) -> None:
    ran = runner.untouched("scaler.py", ours=RARE, every_step=False)
    assert [step.step for step in ran.steps if step.skipped] == [5]
    assert ran.facts.optimizer_steps == len(ran.steps) - 1


TRAIN, STEP = ["run"], ["pre", "post", "lapped"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("simple", [*TRAIN, *STEP]),
        ("gan", [*TRAIN, *STEP, *TRAIN, *STEP]),
        ("closure", ["pre", *TRAIN, "post", "lapped"]),
        ("hand", ["lapped", "_call", *TRAIN]),
    ],
)
def test_an_unsampled_step_is_few_calls(kind: str, expected: list[str], runner: Runner) -> None:
    """What an unsampled step costs is what of hotlap runs in it: one function a hook, with a cold cache each."""
    ran = sampled_run(runner, "calls.py", "60", kind)
    (calls,) = [line.split()[1:] for line in ran.output.splitlines() if line.startswith("calls")]
    on_a_device = {"mark", "_ready"}  # with a torch that has one
    assert [call for call in calls if call not in on_a_device] == ["__next__", *expected]


# steps of several updates, or of more than an update

UNEXPECTED = ("built", "other", "again", "raise", "interrupt", "silent")
"""In the midst of a step of a GAN, these have all looked at again; two of them in that of a closure."""


THIN_ONE, LOOKED_AT = 41, 42
"""Steps."""


@pytest.mark.parametrize(
    ("kind", "event", "at"),
    [
        *(("gan", event, at) for event in (*UNEXPECTED, "eval", "many") for at in (THIN_ONE, LOOKED_AT)),
        *(("lbfgs", event, THIN_ONE) for event in ("built", "other", "eval", "interrupt", "many")),
        *(("wrapped", event, THIN_ONE) for event in ("built", "other", "again", "eval", "interrupt", "many")),
        *(("scaled", event, THIN_ONE) for event in ("skip", "eval", "again")),
        *(("lbfgs", "other", LOOKED_AT), ("wrapped", "again", LOOKED_AT), ("scaled", "skip", LOOKED_AT)),
    ],
)
def test_what_turns_up_in_the_midst_of_a_step(kind: str, event: str, at: int, runner: Runner) -> None:
    argv = ("turns.py", kind, "90", f"{at}:{event}", "70:eval")
    full, ran = runner.forked(*argv), sampled_run(runner, *argv)
    check_same(ran, full)  # which is as the bare one: tests of loops
    check_clean(ran)
    assert unsampled(full.steps) == []
    assert kind != "lbfgs" or len(full.steps) == 90 - (event == "interrupt")  # however many backwards a closure makes
    assert len(unsampled(ran.steps[:at])) > 15
    for what in ("evaluation", "skipped", "kind"):
        assert [getattr(step, what) for step in ran.steps] == [getattr(step, what) for step in full.steps]
    known = [(step, other) for step, other in zip(ran.steps, full.steps, strict=True) if step.phases is not None]
    assert all(step.losses == other.losses and step.loss == other.loss for step, other in known)
    assert ran.facts.optimizer_steps == full.facts.optimizer_steps
    assert ran.facts.backwards == full.facts.backwards
    left = event == "built" or (event in UNEXPECTED and at == THIN_ONE and kind == "gan")
    if left or (at, event) == (THIN_ONE, "other"):
        assert not unsampled(ran.steps[at + 1 : at + 3])
    if event != "silent":
        assert len(unsampled(ran.steps[60:])) > 15


@pytest.mark.parametrize(
    ("event", "at"), [("built", 41), ("other", 41), ("other", 42), ("raise", 41), ("raise", 42), ("silent", 41)]
)
def test_something_else_makes_the_same_steps(event: str, at: int, runner: Runner) -> None:
    argv = ("unsampled.py", "80", f"{at}:{event}")
    full, ran = runner.forked(*argv), sampled(runner, *argv)
    assert unsampled(full.steps) == []
    assert len(unsampled(ran.steps[:at])) > 20
    assert len(ran.steps) == len(full.steps)
    assert ran.facts.backwards == full.facts.backwards
    if event == "silent":
        assert unsampled(ran.steps[at + 2 :]) == []


BY_HAND = ("bare", "model", "loader", "moves")
EXTRA = {"bare": ("again", "raise", "model"), "model": ("model",), "loader": ("model",)}
"""Backwards that are a step more."""


@pytest.mark.parametrize("kind", BY_HAND)
@pytest.mark.parametrize(
    ("event", "at"),
    [
        *((event, THIN_ONE) for event in ("", "eval", "again", "built", "raise", "model", "break")),
        ("again", LOOKED_AT),
        ("raise", LOOKED_AT),
    ],
)
def test_updates_by_hand(kind: str, event: str, at: int, runner: Runner) -> None:
    argv = ("by_hand.py", kind, "90", *([f"{at}:{event}"] if event else []))
    full, ran = runner.untouched(*argv, before=A_DEVICE), sampled(runner, *argv, before=A_DEVICE)
    assert unsampled(full.steps) == []
    assert len(ran.steps) == len(full.steps)
    assert event == "built" or len(full.steps) == (at + 1 if event == "break" else 90 + (event in EXTRA.get(kind, ())))
    assert sum(len(step.losses or [step.loss]) for step in full.steps) == len(full.losses)
    assert [step.step for step in ran.steps if step.evaluation] == [step.step for step in full.steps if step.evaluation]
    known = [(step, other) for step, other in zip(ran.steps, full.steps, strict=True) if step.phases is not None]
    assert all(step.losses == other.losses and step.loss == other.loss for step, other in known)
    assert ran.facts.backwards == full.facts.backwards
    assert len(unsampled(ran.steps[:at])) > 10
    if event in {"", "eval"}:
        assert len(unsampled(ran.steps[60:])) > 15


@pytest.mark.parametrize("steps", [1, 2, 7, 10, 11, 12, 30])
def test_backwards_alone_are_steps_however_few(steps: int, runner: Runner) -> None:
    """Until some came it is not known that nothing else will."""
    for run in (runner.forked, sampled_run_of(runner)):
        ran = run("by_hand.py", "bare", str(steps))
        check_clean(ran)
        check_lines(ran.folder)
        assert len(ran.steps) == steps
        assert [step.loss for step in ran.steps if step.loss is not None] == [
            ran.losses[step.step] for step in ran.steps if step.loss is not None
        ]


@pytest.mark.parametrize("kind", ["one", "some", "two", "built", "outside"])
def test_optimizers_that_step_inside_the_backward(kind: str, runner: Runner) -> None:
    """Some of which do in a step, or others; one more that is made in the midst of it, or one that steps after it."""
    argv = ("inside.py", kind, "40")
    full, ran = runner.forked(*argv), sampled(runner, *argv)
    assert len(ran.steps) == len(full.steps)
    assert kind == "outside" or len(ran.steps) == 40
    assert len(unsampled(ran.steps)) > 8
    assert ran.facts.backwards == full.facts.backwards
    assert ran.facts.optimizer_steps == full.facts.optimizer_steps
    assert all(step.wall_ms > 0 for step in ran.steps)


def sampled_run_of(runner: Runner) -> Callable[..., Ran]:
    return functools.partial(sampled_run, runner)


@pytest.mark.parametrize("kind", BY_HAND)
@pytest.mark.parametrize(
    "hook",
    ["data_begin", "data_end", "transfer_begin", "forward_begin", "backward_begin", "backward_end", *sorted(UNSAMPLED)],
)
def test_an_error_in_a_hook_in_steps_by_hand(hook: str, kind: str, runner: Runner) -> None:
    argv = ("by_hand.py", kind, "60", "31:again")
    ran = sampled_run(runner, *argv, before=A_DEVICE + ("" if hook in UNSAMPLED else LATE), fail_in=hook)
    check_same(ran, runner.bare(*argv, before=A_DEVICE))
    assert [problem.where for problem in ran.problems] in ([hook], [])
    assert ran.problems or hook not in {"backward_begin", "unsampled_step"}
    assert ran.problems or hook != "unsampled_event" or kind == "bare"


def test_a_compilation_is_counted(runner: Runner) -> None:
    ran = sampled_run(runner, "unsampled.py", "80", "41:compile")
    check_clean(ran)
    assert len(ran.steps) == 80
    compiled = [step.step for step in ran.steps if step.compiles]
    assert compiled == [42]
    assert sum(step.compiles for step in ran.steps) == 1


@pytest.mark.parametrize(
    "hook", [name for name in HOOKS if name not in SPARE | UNSAMPLED | TRANSFERS | {"agent_start", "exit"}]
)
def test_an_error_in_a_hook_when_steps_are_unsampled(hook: str, runner: Runner) -> None:
    argv = ("scaler.py",) if hook in SCALED else ("unsampled.py", "60", "31:built", "41:load")
    bare, ran = runner.bare(*argv), sampled_run(runner, *argv, before=LATE, fail_in=hook)
    check_same(ran, bare)
    assert [problem.where for problem in ran.problems] in ([hook], [])
    assert ran.problems or hook not in {
        "forward_begin",
        "forward_end",
        "backward_begin",
        "optimizer_end",
        "loader_start",
    }


@pytest.mark.parametrize("kind", ["gan", "lbfgs", "wrapped", "scaled"])
@pytest.mark.parametrize(
    "hook", ["forward_end", "backward_begin", "optimizer_begin", "optimizer_end", "unsampled_step", "unsampled_leave"]
)
def test_an_error_in_a_hook_in_steps_of_several_updates(hook: str, kind: str, runner: Runner) -> None:
    argv = ("turns.py", kind, "60", "31:built", "41:other")
    bare, ran = runner.bare(*argv), runner.forked(*argv, before=SOON + LATE, fail_in=hook, every_step=False)
    check_same(ran, bare)
    check_lines(ran.folder)
    assert [problem.where for problem in ran.problems] == [hook]


LATE = """
import sys
import hotlap.agent.guard as guard
around = guard.Guard.around

def late(self, name, hook):
    failing, self.fail_in = self.fail_in, None

    def fails(*args):
        if sys._hotlap_agent.step_sampling.on:
            raise RuntimeError("injected late")
        return hook(*args)

    found = around(self, name, fails if name == failing else hook)
    self.fail_in = failing
    return found

guard.Guard.around = late
"""
"""An error comes once steps are unsampled."""


@pytest.mark.parametrize("hook", sorted(UNSAMPLED))
def test_an_error_in_an_unsampled_step(hook: str, runner: Runner) -> None:
    argv: tuple[str, ...] = ("unsampled.py", "60", "31:built")
    argv = {"unsampled_event": ("by_hand.py", "loader", "60"), "unsampled_inside": ("inside.py", "one", "60")}.get(
        hook, argv
    )
    bare, ran = runner.bare(*argv), sampled_run(runner, *argv, fail_in=hook)
    check_same(ran, bare)
    assert [(problem.where, problem.what) for problem in ran.problems] == [
        (hook, f"RuntimeError: injected into {hook}")
    ]


BROKEN = """
import sys
import hotlap.agent.{module} as module

owner = module{owner}
original = owner.{name}

def broken(*args):
    if sys._hotlap_agent.begun:
        raise IndexError("broken")
    return original(*args)

owner.{name} = broken
"""


@pytest.mark.parametrize(
    ("broken", "hook", "argv"),
    [
        ("steps Steps replay_ends_step", "graph_replay", ("captured.py", "partial", "40")),
        ("steps Steps replayed_unsampled", "graph_replayed", ("captured.py", "whole", "40")),
        ("steps Steps replayed_unsampled", "graph_replayed", ("captured.py", "infer", "40")),
        ("step_sampling StepSampling evaluating", "graph_replayed", ("captured.py", "evaluation", "40")),
        ("hooks.graph Graphs _inside", "graph_replay", ("captured.py", "partial", "40")),
        ("hooks.transfer - _to_device", "transfer_begin", ("moves.py",)),
        ("hooks.forward - _note_recorded", "forward_find", ("captured.py", "whole", "40")),
        ("hooks.forward Root ended_unsampled", "forward_end", ("inference.py", "no_grad")),
        ("step_sampling StepSampling evaluating", "forward_end", ("unsampled.py", "60", "31:eval")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_error_in_the_midst_of_a_hook(broken: str, hook: str, argv: tuple[str, ...], runner: Runner) -> None:
    """In what it asks on its way, not in place of it."""
    module, owner, name = broken.split()
    before = BROKEN.format(module=module, owner="" if owner == "-" else f".{owner}", name=name)
    if hook == "graph_replay":
        before = before.replace("agent.begun", "agent.step_sampling.on")
    device = A_DEVICE if argv == ("moves.py",) else ""
    ran = sampled_run(runner, *argv, before=device + before)
    check_same(ran, runner.bare(*argv, before=device))
    assert [(problem.where, problem.what) for problem in ran.problems] == [(hook, "IndexError: broken")]


@pytest.mark.parametrize("kind", ["whole", "infer", "evaluation"])
@pytest.mark.parametrize("hook", ["graph_begin", "graph_replay", "graph_replayed"])
def test_an_error_in_a_hook_of_graphs_in_unsampled_steps(hook: str, kind: str, runner: Runner) -> None:
    argv = ("captured.py", "again" if hook == "graph_begin" else kind, "40")
    ran = sampled_run(runner, *argv, before=LATE, fail_in=hook)
    check_same(ran, runner.bare(*argv))
    assert [(problem.where, problem.what) for problem in ran.problems] == [(hook, "RuntimeError: injected late")]


def test_a_lever_is_in_unsampled_steps_too(runner: Runner) -> None:
    argv = ("loader.py", "map")
    lever = LeverUse("loader-workers", {"workers": 1, "prefetch": 2, "pin_memory": False, "persistent": True})
    ran = runner.forked(*argv, before=SOON, every_step=False, levers=(lever,))
    assert len(ran.steps) == 12
    assert unsampled(ran.steps)
    check_same(ran, runner.bare(*argv))


# unusual calls of the model


@pytest.mark.parametrize(
    "case", ["replica", "shared", "orphan", "nested", "reentrant", "beside", "double", "validate", "interrupted"]
)
def test_an_unusual_call_is_what_it_is_without_hotlap(case: str, runner: Runner) -> None:
    ran = sampled(runner, "unsampled_models.py", case, "60")
    steps = 120 if case == "double" else 60
    assert len(ran.steps) == ran.facts.optimizer_steps == steps
    assert len(unsampled(ran.steps)) > steps / 2
    assert ran.facts.backwards == 60
    assert not [step.step for step in ran.steps if step.evaluation]
    assert 4 <= ran.facts.forwards < steps / 2  # of the steps that were looked at


def test_updates_by_hand_after_inference(runner: Runner) -> None:
    argv = ("unsampled_models.py", "inferring", "40")
    full, ran = runner.forked(*argv), sampled(runner, *argv)
    assert [step.kind for step in ran.steps] == [step.kind for step in full.steps]
    assert len(unsampled(ran.steps)) > 20
    assert ran.facts.optimizer_steps == full.facts.optimizer_steps == 0
