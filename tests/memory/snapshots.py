"""Snapshots as torch makes them, and how they come to be damaged."""

import pickle
import pickletools
import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

BASE = 0x7F2A00000000
USER, TORCH = "/home/ada/project/train.py", "/opt/py/lib/python3.11/site-packages/torch/nn/modules/linear.py"
TIME_US = 1_700_000_000_000_000


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


CPP = frame("??", 0, "at::empty(c10::ArrayRef<long>)")
LINEAR = frame(TORCH, 134, "forward")
STEP = frame(USER, 20, "step")
MAIN = frame(USER, 40, "<module>")


def today(*, expandable: bool = False) -> dict[str, Any]:
    """Of torch 2.1 and later: shared lists of shared frames; one step with an allocation that another stream still
    uses, a CUDA graph's pool, and an end out of memory."""
    stack = [CPP, LINEAR, STEP, MAIN]
    other = [CPP, frame("/w/Copy.cpp", 3, "copy_"), MAIN]

    def entry(action: str, at: int, size: int, time: int, frames: list[Any]) -> dict[str, Any]:
        place = {"device_free" if action == "oom" else "addr": at}
        rest = {"stream": 0, "time_us": TIME_US + time, "compile_context": "N/A", "user_metadata": "", "frames": frames}
        return {"action": action, **place, "size": size, **rest}

    took, gave = ("segment_map", "segment_unmap") if expandable else ("segment_alloc", "segment_free")
    trace = [
        entry(took, BASE, 2 << 20, 0, stack),
        entry("alloc", BASE, 1000, 1, stack),
        entry("alloc", BASE + 1024, 600, 2, other),
        entry("free_requested", BASE + 1024, 600, 3, stack),
        entry("free_completed", BASE + 1024, 600, 9, stack),
        entry("alloc", BASE + 1024, 2000, 10, other),
        entry("free_requested", BASE + 1024, 2000, 11, other),
        entry("snapshot", 0, 0, 12, []),
        entry("user_defined", 0, 0, 12, []),
        entry(gave, BASE + (4 << 20), 2 << 20, 13, []),
        entry("oom", 1 << 20, 64 << 30, 14, [CPP, LINEAR, STEP, MAIN]),
    ]

    def block(at: int, size: int, asked: int, state: str, frames: list[Any]) -> dict[str, Any]:
        return {"address": at, "size": size, "requested_size": asked, "state": state, "frames": frames}

    def segment(at: int, pool: tuple[int, int], blocks: list[Any]) -> dict[str, Any]:
        taken = sum(one["size"] for one in blocks if one["state"] == "active_allocated")
        sizes = {"total_size": 2 << 20, "allocated_size": taken, "active_size": taken, "requested_size": taken}
        place = {"device": 0, "address": at, **sizes, "stream": 0, "segment_type": "small", "segment_pool_id": pool}
        return {**place, "is_expandable": expandable, "frames": stack, "blocks": blocks}

    blocks = [
        block(BASE, 1024, 1000, "active_allocated", stack),
        block(BASE + 1024, 2048, 2000, "active_pending_free", other),
        block(BASE + 3072, (2 << 20) - 3072, 0, "inactive", []),
    ]
    graph = [
        block(BASE + (8 << 20), 1 << 20, 1 << 20, "active_allocated", []),
        block(BASE + (9 << 20), 1 << 19, 0, "inactive", []),
        block(BASE + (9 << 20) + (1 << 19), 1 << 19, 5, "active_allocated", other),
    ]
    return {
        "segments": [segment(BASE, (0, 0), blocks), segment(BASE + (8 << 20), (0, 3), graph)],
        "device_traces": [trace, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0},
        "external_annotations": [],
    }


def early() -> dict[str, Any]:
    """Of torch 2.0 and before: blocks without addresses, with a history; no times; frames are not shared."""

    def stack() -> list[Any]:
        return [dict(LINEAR), dict(STEP), dict(MAIN)]

    def past(at: int, size: int) -> dict[str, Any]:
        return {"addr": at, "real_size": size, "frames": stack(), "cpp_frames": ["at::empty"]}

    place = {"device": 1, "address": BASE, "total_size": 2 << 20, "allocated_size": 1536, "active_size": 1536}
    blocks = [
        {"size": 512, "state": "active_allocated", "history": [past(BASE, 100), past(BASE, 444)]},
        {"size": 1024, "state": "active_allocated"},
        {"size": (2 << 20) - 1536, "state": "inactive", "history": [past(BASE + 1536, 77)]},
    ]
    trace = [
        {"action": action, "addr": BASE, "size": 100, "stream": 0, "frames": stack()}
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed", "alloc")
    ]
    segment = {**place, "stream": 0, "segment_type": "small", "blocks": blocks}
    return {"segments": [segment], "device_traces": [[], trace]}


@cache
def whole() -> list[bytes]:
    """Files as torch, and scripts that write the protocol of others, leave them."""
    made = (today(), early(), today()["segments"])
    return [pickle.dumps(one, protocol) for one in made for protocol in (0, 2, 4, 5)]


def _leaf(rng: random.Random) -> Any:
    """What should not stand where it will."""
    nested: Any = ()
    for _ in range(200):
        nested = (nested,)
    own: list[Any] = []
    own.append(own)
    choices: Sequence[Any] = (
        None, True, -1, 7, 1 << 40, 1 << 63, 1 << 200, -1 << 63, 0.5, float("nan"), "", "x" * 9000, "\udcff", "oom",
        b"\0", [], {}, (), (0, 1), set(), nested, own, [own], {"frames": own}, [None], [{}], ["oom"], [1, 2],
        bytearray(b"x"),
        frozenset({1}), {"action": "alloc"}, {"action": "oom"}, LINEAR, [LINEAR], "inactive", "active_allocated",
    )  # fmt: skip
    return rng.choice(choices)


def _another_value(rng: random.Random) -> bytes:
    """One value is another, is missing, or stands in two places."""
    top: Any = rng.choice((today, early))()
    at = top
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not (isinstance(at[key], (dict, list)) and at[key]) or rng.random() < 0.1:
            break
        at = at[key]
    match rng.randrange(5):
        case 0:
            del at[key]
        case 1 if isinstance(at, list):
            at.append(at[key])
        case 2:
            at[key] = rng.choice((top, *top.values()))
        case _:
            at[key] = _leaf(rng)
    return pickle.dumps(top, rng.choice((0, 2, 4, 5)))


def _bytes(rng: random.Random, whole: bytes) -> bytes:
    made = bytearray(whole)
    start, at, size = rng.randrange(len(made)), rng.randrange(len(made)), rng.choice((1, 2, 10, 100, 1000))
    match rng.randrange(5):
        case 0:
            del made[start:]
        case 1:
            del made[start : start + size]
        case 2:
            made[at:at] = made[start : start + size] * rng.choice((1, 1, 2, 50))
        case _:
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


@cache
def _begins(whole: bytes) -> list[int]:
    """Where operations of the pickle begin."""
    return [at or 0 for _, _, at in pickletools.genops(whole)]


CODES = [one.code.encode("latin-1") for one in pickletools.opcodes]
ARGUMENTS = (
    b"",
    b"",
    b"\0",
    b"\1",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x7f",
    b"\xff" * 8,
    b"7\n",
    b"99999999999\n",
    b"os\nsystem\n",
)


def _operations(rng: random.Random, whole: bytes) -> bytes:
    """Operations are left out, put in, or put elsewhere; without frames, whose lengths would no longer be right."""
    starts = [*_begins(whole), len(whole)]
    made = [whole[start:end] for start, end in pairwise(starts)]
    made = [one for one in made if one[:1] != b"\x95"]
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(made))
        match rng.randrange(4):
            case 0:
                del made[at]
            case 1:
                made.insert(at, rng.choice(made))
            case 2:
                made[at] = rng.choice(CODES) + rng.choice(ARGUMENTS)
            case _:
                made.insert(at, rng.choice(CODES) + rng.choice(ARGUMENTS))
    return b"".join(made)


def mutated(seed: int) -> tuple[str, bytes]:
    """What is wrong with a snapshot, and the snapshot; the same for the same seed."""
    rng = random.Random(seed)
    kind = ("value", "bytes", "operations")[seed % 3]
    if kind == "value":
        return kind, _another_value(rng)
    return kind, (_bytes if kind == "bytes" else _operations)(rng, rng.choice(whole()))
