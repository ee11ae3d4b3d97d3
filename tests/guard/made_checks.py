"""Records of checks, without training."""

from typing import Any

import msgspec

from hotlap.records.check import Attempt, Cause, Check, Judged, Target, Version
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.run import Environment, Gpu, Phases
from hotlap.records.tune import Interval, Parity

MACHINE = Environment(
    hotlap="0.1.0",
    python="3.11",
    os="Linux",
    cpu="a cpu",
    cores=8,
    memory_gib=64,
    gpus=(Gpu(name="H100", memory_gib=80),),
)


def judged(what: str = "step time", change: float | None = 0.002, call: str = "within", **more: Any) -> Judged:
    known: dict[str, Any] = {
        "what": what, "unit": "ms", "before": 10.0, "after": None if change is None else 10.0 * (1 + change),
        "change": change, "interval": None if change is None else Interval(low=change - 0.01, high=change + 0.01),
        "limit": 0.05, "call": call,
    }  # fmt: skip
    return Judged(**{**known, **more})


def attempt(*quantities: Judged, **more: Any) -> Attempt:
    known: dict[str, Any] = {"starts": 3, "turns": 8, "how": "turns", "null": 0.004, "seconds": 61.0}
    return Attempt(**{**known, **more}, judged=quantities)


MEMORY = judged("peak memory", unit="bytes", before=2.0**30, after=2.0**30, change=0.0)


def check(verdict: str = "pass", why: str = "more than 5% slower is ruled out (+0.2%)", **more: Any) -> Check:
    known: dict[str, Any] = {
        "base": Version(name="main", command=("python", "train.py"), cwd="/tmp/base", commit="1" * 40),
        "head": Version(name="HEAD", command=("python", "train.py"), cwd="/tmp/head", commit="2" * 40),
        "limit": 0.05, "attempts": (attempt(judged(), MEMORY),), "environment": MACHINE, "seconds": 62.0,
    }  # fmt: skip
    return Check(verdict=verdict, why=why, **{**known, **more})  # type: ignore[arg-type]


SLOWER = judged(change=0.2, call="slower")
FAILED = check(
    "fail", "step time +20.0%",
    attempts=(attempt(SLOWER, MEMORY), attempt(SLOWER, MEMORY)),
    cause=Cause(
        before=Phases(forward=4.0, backward=5.0, other=1.0), after=Phases(forward=6.0, backward=5.0, other=1.0),
        phase="forward", ms=2.0,
        findings=(
            Finding(id="sync", bound="sync", share=0.2, title="the host waits", where=Place(file="train.py", line=3)),
        ),
    ),
)  # fmt: skip
DIFFERENT = Parity(ok=False, level="numeric", why="loss differs by 3.00%, allowed 1.00%")
TARGET = Target(metric="accuracy", compare=">=", wanted=0.97, value=0.5, seconds=9.0)


def with_(made: Check, **changes: Any) -> Check:
    return msgspec.structs.replace(made, **changes)
