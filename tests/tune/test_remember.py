"""What is remembered of earlier tunes: its key, what a search does with it, and that nothing read is believed."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from machine import LOSSES, FakeLever, Machine, factors, kept, starter, whole_tunes
from machine import Tune as Search

from hotlap.experiment.evidence import Evidence
from hotlap.levers import all_levers
from hotlap.records.run import Environment, Facts, Lever
from hotlap.records.tune import Dropped, Kept, Trial, Worth
from hotlap.tune import remember
from hotlap.tune.objective import TuneRequest
from hotlap.tune.remember import Failed, Remembered, key_of, learned, recall, store
from hotlap.tune.tune import tune as tune_whole

MACHINE = Environment(hotlap="0", python="3.11", os="Linux", cpu="x", cores=8, memory_gib=31.6)
BLOCKS = Lever(name="checkpoint-blocks", settings={"every": 4})
MANY = {"workers": 999, "prefetch": 2, "pin_memory": False, "persistent": True}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tune"


def before(*names: str, failed: tuple[Failed, ...] = ()) -> Remembered:
    uses = tuple(Lever(name=name) for name in names)
    return Remembered(when=time.time(), kept=uses, failed=failed)


# what a search does with it


def test_what_was_kept_is_proved_first_and_at_once(tune: Search) -> None:
    levers = [FakeLever("a", 0.2), FakeLever("b", 0.5), starter("c", 0.4)]
    known = before("c", "a")
    found, machine = tune(levers, factors(a=0.8, b=0.9, c=0.6), remembered=known)
    assert [what for what, _ in machine.log][:4] == ["baseline", "baseline", "prove", "prove"]
    assert [use.name for use in found.proofs[0].levers] == ["c", "a"], "nothing is tried before that proof"
    assert sorted(kept(found)) == ["a", "b", "c"], "what was not known before is tried as well"
    assert found.proved.ratio == pytest.approx(1 / (0.8 * 0.9 * 0.6)), "measured anew"
    assert "c + a" in found.reused[0] and known.date in found.reused[0] and machine.told("remembered")


def test_what_failed_is_not_tried_again_and_said(tune: Search) -> None:
    known = before(failed=(Failed(lever="bad", why="crashed: boom"), Failed(lever="slow", why="slower", ratio=0.7)))
    levers = [FakeLever("bad", 0.9), FakeLever("slow", 0.8), FakeLever("good", 0.5)]
    found, machine = tune(levers, factors(good=0.5, slow=1.4), remembered=known)
    assert kept(found) == ["good"] and not [names for _, names in machine.log if {"bad", "slow"} & {*names}]
    assert (
        found.dropped["bad"].why == f"as in the tune of {known.date}: crashed: boom" and found.dropped["bad"].remembered
    )
    assert found.dropped["slow"].ratio == 0.7 and "bad, slow" in found.reused[0]


def test_a_set_that_does_not_hold_any_more_is_forgotten(tune: Search) -> None:
    known = before("a", "b", failed=(Failed(lever="c", why="slower", ratio=0.7),))
    levers = [FakeLever("a", 0.5), starter("b", 0.4), starter("c", 0.3)]
    found, _machine = tune(levers, factors(a=1.1, b=1.1, c=0.5), remembered=known)
    assert not any("tune of" in line for line in found.reused), "it was not proved, so it is not said to be"
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


# the key


def facts(*sources: str, **more: Any) -> Facts:
    return Facts(pid=1, rank=0, world=1, argv=(), python="3.11", torch="2.13", sources=sources, **more)


def test_the_key_follows_command_code_environment_and_machine(tmp_path: Path) -> None:
    script, module, config = (tmp_path / name for name in ("train.py", "model.py", "c.yaml"))
    for path in (script, module, config):
        path.write_text("x = 1\n")
    command = ("python", "train.py", "--config=c.yaml")

    def key(command: tuple[str, ...] = command, machine: Environment = MACHINE, **more: Any) -> str:
        return key_of(command, tmp_path, facts(str(script), str(module), **more), machine, ("time",))

    first = key()
    assert key() == first
    os.utime(script, (1, 1))
    assert key() == first, "content counts, not times"
    others = [
        key((*command, "--lr", "1")),
        key(device_name="H100"),
        key(machine=msgspec.structs.replace(MACHINE, cores=4)),
        key(machine=msgspec.structs.replace(MACHINE, variables={"OMP_NUM_THREADS": "1"})),
        key_of(command, tmp_path, facts(str(script), str(module)), MACHINE, ("memory",)),
    ]
    for path in (module, config):
        path.write_text("x = 2\n")
        others.append(key())
    assert len({first, *others}) == len(others) + 1


# the file


def test_what_is_stored_is_recalled() -> None:
    known = Remembered(when=time.time(), kept=(BLOCKS,), failed=(Failed(lever="tf32", why="no"),))
    store("k", known)
    assert recall("k", all_levers(), MACHINE) == known
    assert recall("other", all_levers(), MACHINE) == Remembered()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"kept": 3}', '{"when": "now"}', '{"version": 2, "when": 1}', "[" * 100_000,
        json.dumps({"when": 4e12}), json.dumps({"when": 1.0}), "x" * (300 << 10),
    ],
)  # fmt: skip
def test_a_broken_file_is_as_good_as_none(cache: Path, text: str) -> None:
    cache.mkdir(parents=True)
    (cache / "k.json").write_text(text)
    assert recall("k", all_levers(), MACHINE) == Remembered()


@pytest.mark.parametrize(
    "uses",
    [
        [{"name": "no-such-lever"}],
        [{"name": "../../evil"}],
        [{"name": "checkpoint-blocks", "settings": {"every": "4; rm -rf /"}}],
        [{"name": "loader-workers", "settings": MANY}],
        [
            {"name": "checkpoint-blocks", "settings": {"every": 2}},
            {"name": "checkpoint-blocks", "settings": {"every": 4}},
        ],
    ],
    ids=["unknown", "path", "not a number", "more than there are cores", "twice"],
)
def test_a_set_that_is_no_recipe_here_is_not_used(cache: Path, uses: list[dict[str, Any]]) -> None:
    cache.mkdir(parents=True)
    (cache / "k.json").write_text(json.dumps({"when": time.time(), "kept": uses, "failed": []}))
    assert recall("k", all_levers(), MACHINE).kept == ()


def test_the_cache_is_bounded_and_forgets_the_oldest(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remember, "MOST_FILES", 3)
    for number in range(5):
        store(f"k{number}", Remembered(when=time.time()))
        os.utime(cache / f"k{number}.json", (number, number))
    store("last", Remembered(when=time.time()))
    assert sorted(path.stem for path in cache.iterdir()) == ["k3", "k4", "last"]


def test_a_cache_that_can_not_be_written_is_done_without(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    store("k", Remembered(when=time.time()))
    assert recall("k", all_levers(), MACHINE) == Remembered()


def test_only_what_was_tried_is_learned() -> None:
    trials = [Trial(id=1, purpose="", levers=(Lever(name=name),), folder="", outcome="crashed") for name in ("x", "y")]
    dropped = [
        Dropped(lever="x", why="crashed: " + "boom" * 200),
        Dropped(lever="y", why="slower", ratio=0.8),
        Dropped(lever="z", why="could win at most 0.3% of the step here"),
        Dropped(lever="w", why="no gain", ratio=1.0),
        Dropped(lever="v", why="crashed: but in another tune", remembered=True),
    ]
    good = Kept(lever="good", settings={}, risk="exact", meaning="", worth=Worth(ratio=1.4))
    old = before(failed=(Failed(lever="v", why="crashed"), Failed(lever="good", why="once")))
    found = learned(old, [good], dropped, trials)
    assert [one.lever for one in found.failed] == ["v", "x", "y"] and len(found.failed[1].why) <= 300
    assert found.kept == (Lever(name="good"),)
    noisy = learned(old, [good], dropped, trials, noise=0.2)
    assert [one.lever for one in noisy.failed] == ["v", "x"], "noise may have made y slower"


def test_what_crashed_when_it_was_switched_on_is_learned(tune: Search) -> None:
    """Its process was begun without it."""
    found, machine = tune([FakeLever("bad")], factors(), dies=lambda uses, turns: "signal 11" if uses else "")
    known = learned(Remembered(), [], found.dropped.values(), machine.done)
    assert [(one.lever, one.why) for one in known.failed] == [("bad", "signal 11")]


# a whole tune and the next


def test_the_next_tune_of_a_command_is_fast_and_says_so(tmp_path: Path) -> None:
    levers = [FakeLever("a", 0.5), FakeLever("b", 0.4), starter("bad", 0.3)]
    crash = lambda uses: ("crashed", "boom") if "bad" in uses else ("measured", "")  # noqa: E731
    machines = [Machine(factors(a=0.5, b=0.8), tmp_path / f"t{number}", outcome=crash) for number in range(3)]
    listener = SimpleNamespace(result=lambda text: None, trial=lambda *_: None, step=lambda *_: None)

    def tuned(number: int, **more: Any) -> Any:
        request = TuneRequest(command=(sys.executable, "-c", "1"), cwd=str(tmp_path), budget_s=1e6, **more)
        with whole_tunes([machines[number]], levers):
            return tune_whole(tmp_path / f"t{number}", request, listener)  # type: ignore[arg-type]

    first, second, third = tuned(0), tuned(1), tuned(2, fresh=True)
    assert not any("tune of" in line for line in first.reused) and [one.lever for one in first.kept] == ["a", "b"]
    assert [one.lever for one in second.kept] == ["a", "b"] and second.speedup == pytest.approx(2.5)
    assert "not tried again" in second.reused[0] and "proved first (a + b)" in second.reused[1]
    assert len(second.trials) < len(first.trials)
    assert ("try bad", ("a", "b", "bad")) not in machines[1].log
    assert machines[2].starts("try bad") and not any("tune of" in line for line in third.reused)
