"""What is remembered of an earlier session, and what a search does with it."""

from types import SimpleNamespace
from typing import Any

import pytest
from machine import LOSSES, FakeLever, factors, kept, starter
from machine import Tune as Search

from hotlap.experiment.evidence import Evidence
from hotlap.records.run import Lever
from hotlap.records.tune import Dropped, Kept, Trial, Worth
from hotlap.tune.remember import Remembered, of_earlier


def before(*names: str, failed: tuple[Dropped, ...] = ()) -> Remembered:
    uses = tuple(Lever(name=name) for name in names)
    return Remembered(uses, failed)


# what a search does with it


def test_what_was_kept_is_proved_first_and_at_once(tune: Search) -> None:
    levers = [FakeLever("a", 0.2), FakeLever("b", 0.5), starter("c", 0.4)]
    known = before("c", "a")
    found, machine = tune(levers, factors(a=0.8, b=0.9, c=0.6), remembered=known)
    assert [what for what, _ in machine.log][:4] == ["baseline", "baseline", "prove", "prove"]
    assert [use.name for use in found.proofs[0].levers] == ["c", "a"], "nothing is tried before that proof"
    assert sorted(kept(found)) == ["a", "b", "c"], "what was not known before is tried as well"
    assert found.proved.ratio == pytest.approx(1 / (0.8 * 0.9 * 0.6)), "measured anew"
    assert "c + a" in found.reused[0] and "an earlier session" in found.reused[0] and machine.told("remembered")


def test_what_failed_is_not_tried_again_and_said(tune: Search) -> None:
    known = before(failed=(Dropped(lever="bad", why="crashed: boom"), Dropped(lever="slow", why="slower", ratio=0.7)))
    levers = [FakeLever("bad", 0.9), FakeLever("slow", 0.8), FakeLever("good", 0.5)]
    found, machine = tune(levers, factors(good=0.5, slow=1.4), remembered=known)
    assert kept(found) == ["good"] and not [names for _, names in machine.log if {"bad", "slow"} & {*names}]
    assert found.dropped["bad"].why == "as in an earlier session: crashed: boom" and found.dropped["bad"].remembered
    assert found.dropped["slow"].ratio == 0.7 and "bad, slow" in found.reused[0]


def test_a_set_that_does_not_hold_any_more_is_forgotten(tune: Search) -> None:
    known = before("a", "b", failed=(Dropped(lever="c", why="slower", ratio=0.7),))
    levers = [FakeLever("a", 0.5), starter("b", 0.4), starter("c", 0.3)]
    found, _machine = tune(levers, factors(a=1.1, b=1.1, c=0.5), remembered=known)
    assert not any("session" in line for line in found.reused), "it was not proved, so it is not said to be"
    assert kept(found) == ["c"] and [use.name for use in found.proofs[0].levers] == ["a", "b"]


def test_one_of_a_set_that_is_worth_nothing_any_more_goes_out(tune: Search) -> None:
    known = before("a", "b")
    found, _ = tune([FakeLever("a", 0.5), FakeLever("b", 0.4)], factors(a=0.5), remembered=known)
    assert kept(found) == ["a"] and found.dropped["b"].why.startswith("no gain")


def test_a_set_of_which_one_does_not_apply_any_more_is_passed_over(tune: Search) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.4, only_when="input")]
    found, _ = tune(levers, factors(a=0.5), remembered=before("a", "b"))
    assert kept(found) == ["a"] and [use.name for use in found.proofs[0].levers] == ["a"]


def test_parity_of_a_remembered_set_is_judged_anew(tune: Search) -> None:
    found, _ = tune(
        [FakeLever("cheat", 0.5)], factors(cheat=0.3), remembered=before("cheat"),
        evidence_of=lambda uses: Evidence(tuple((9.0,) for _ in LOSSES) if uses else LOSSES),
    )  # fmt: skip
    assert kept(found) == [] and found.dropped["cheat"].why.startswith("parity: ")
    assert not any("proved first" in line for line in found.reused)


def session(**more: Any) -> Any:
    """What an earlier session left."""
    return SimpleNamespace(**{"kept": (), "dropped": (), "trials": (), "noise": None, "unproved": None, **more})


def test_only_what_was_tried_is_learned() -> None:
    trials = [Trial(id=1, purpose="", levers=(Lever(name=name),), folder="", outcome="crashed") for name in ("x", "y")]
    dropped = [
        Dropped(lever="x", why="crashed: boom"),
        Dropped(lever="y", why="slower", ratio=0.8),
        Dropped(lever="z", why="could win at most 0.3% of the step here"),
        Dropped(lever="w", why="no gain", ratio=1.0),
        Dropped(lever="v", why="crashed: but in another session", remembered=True),
    ]
    good = Kept(lever="good", settings={}, risk="exact", meaning="", worth=Worth(ratio=1.4))
    found = of_earlier(session(kept=(good,), dropped=dropped, trials=trials))
    assert [one.lever for one in found.failed] == ["x", "y"]
    assert found.kept == (Lever(name="good"),)
    noisy = of_earlier(session(kept=(good,), dropped=dropped, trials=trials, noise=0.2))
    assert [one.lever for one in noisy.failed] == ["x"], "noise may have made y slower"


def test_what_crashed_when_it_was_switched_on_is_learned(tune: Search) -> None:
    """Its process was begun without it."""
    found, machine = tune([FakeLever("bad")], factors(), dies=lambda uses, turns: "signal 11" if uses else "")
    known = of_earlier(session(dropped=found.dropped.values(), trials=machine.done))
    assert [(one.lever, one.why) for one in known.failed] == [("bad", "signal 11")]
