"""Broken traces, made from whole ones: the same seed gives the same file."""

# ruff: noqa: E501 - tables of broken values are long

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
EXCERPTS = ("cpu", "ddp", "eager", "graphs", "stacks")
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
WORD = re.compile(rb'"[^"\n]{0,40}"')
NUMBERS = [
    b"0", b"-1", b"-0", b"1e400", b"-1e400", b"1e15", b"4396248352218.378", b"1790857026000000.123", b"9223372036854775807",
    b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1" * 50, b"1" * 5000, b"0.1e-400", b"NaN",
    b"Infinity", b"-Infinity", b"N/A", b"nan", b"null", b"true", b'"7"', b'"stream 7"', b'""', b"[]", b"{}", b"1.5", b"00", b"1.",
]  # fmt: skip
WORDS = [
    b'""', b'"X"', b'"M"', b'"i"', b'"cat"', b'"ts"', b'"args"', b'"kernel"', b'"Kernel"', b'"Runtime"', b'"async_gpu"', b'"Trace"',
    b'"[memory]"', b'"ProfilerStep#1"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\x00"', b'"\xff\xfe"', b'"a "b" c"', b'"\\"', b"7", b"null",
    b"[]", b'"traceEvents"', b'"}, {"', b'"nccl"', b'"Optimizer.step#A.step"', b'"' + b"x" * 5000 + b'"', b"[" * 2000, b"{\"a\":" * 2000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e300, 1 << 63, -(1 << 63) - 1, 1 << 64, 10**30, float("nan"), float("inf"), "", "x", "7", "\x00",
    [], {}, [1, 2, 3], [[1, [2]]], {"a": {"b": 1}}, "ProfilerStep#3", "kernel", "N/A", 1790857026000000.123, -5.25, [None], "stream 7",
]  # fmt: skip
KEYS = ["ts", "dur", "ph", "cat", "name", "pid", "tid", "args", "correlation", "External id", "stream", "device", "grid", "block",
        "Input Dims", "Input type", "Sequence number", "Comms Id", "Group size", "Python id", "Bytes", "Addr"]  # fmt: skip


def flip(text: bytes, rng: random.Random) -> bytes:
    made = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        made[rng.randrange(len(made))] = rng.choice((rng.randrange(256), ord(rng.choice('"{}[],:\\\n'))))
    return bytes(made)


def delete(text: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(text))
    return text[:start] + text[start + rng.choice((1, 2, 10, 100, 1000)) :]


def duplicate(text: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(text))
    piece = text[start : start + rng.choice((1, 5, 50, 500, 5000))]
    at = rng.choice((start, rng.randrange(len(text))))
    return text[:at] + piece * rng.choice((1, 1, 2, 50)) + text[at:]


def move(text: bytes, rng: random.Random) -> bytes:
    start, size, at = rng.randrange(len(text)), rng.choice((1, 10, 100, 1000)), rng.randrange(len(text))
    rest = text[:start] + text[start + size :]
    return rest[:at] + text[start : start + size] + rest[at:]


def numbers(text: bytes, rng: random.Random) -> bytes:
    return _replaced(text, NUMBER, NUMBERS, rng)


def words(text: bytes, rng: random.Random) -> bytes:
    return _replaced(text, WORD, WORDS, rng)


def _replaced(text: bytes, pattern: "re.Pattern[bytes]", others: list[bytes], rng: random.Random) -> bytes:
    found = list(pattern.finditer(text))
    for match in sorted(rng.sample(found, min(len(found), rng.choice((1, 1, 3, 20)))), key=lambda m: -m.start()):
        other = rng.choice(others) if rng.random() < 0.8 else rng.choice(found)[0]
        text = text[: match.start()] + other + text[match.end() :]
    return text


def truncate(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


def behead(text: bytes, rng: random.Random) -> bytes:
    return text[rng.randrange(len(text)) :]


def structure(text: bytes, rng: random.Random) -> bytes:
    """Fields of the parsed trace changed, dropped, renamed; events repeated, reordered, replaced; dumped anew."""
    trace = json.loads(text)
    events = trace["traceEvents"]
    for _ in range(rng.choice((1, 3, 10, 50))):
        _change(events, rng)
    if rng.random() < 0.2:
        trace[rng.choice(list(trace))] = rng.choice(VALUES)
    if rng.random() < 0.1:
        trace["distributedInfo"] = rng.choice(
            [*VALUES, {"rank": 1, "world_size": 2}, {"rank": "1", "world_size": None}]
        )
    whole = events if rng.random() < 0.1 else trace
    separators = (",", ":") if rng.random() < 0.3 else None
    return json.dumps(whole, indent=rng.choice((None, None, 0, 1, 2)), separators=separators).encode()


def _change(events: Any, rng: random.Random) -> None:
    if not isinstance(events, list) or not events:
        return
    at = rng.randrange(len(events))
    event = events[at]
    kind = rng.randrange(8)
    if kind == 0:
        events.insert(rng.randrange(len(events)), rng.choice([event, *VALUES]))
    elif kind == 1:
        other = rng.randrange(len(events))
        events[at], events[other] = events[other], event
    elif kind == 2:
        del events[at]
    elif isinstance(event, dict) and event:
        args = event.get("args")
        part = args if isinstance(args, dict) and args and rng.random() < 0.5 else event
        key = rng.choice(list(part))
        if kind == 3:
            part[rng.choice(KEYS)] = part.pop(key)
        elif kind == 4:
            del part[key]
        elif kind == 5 and isinstance(part[key], int | float):
            part[key] = part[key] * rng.choice((-1, 0, 1000, 1e6, 0.001))
        else:
            part[rng.choice((key, key, rng.choice(KEYS)))] = rng.choice(VALUES)


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    made.__name__: made
    for made in (flip, delete, duplicate, move, numbers, words, truncate, behead, structure, structure, structure)
}


BETWEEN = re.compile(rb"(?<=\n  \}),(?=\n  \{)")
ODD = re.compile(rb'"ph": "M"|"cat": "Trace"|"s": "g"')
"""Events of which one in a block makes the reader take it event by event."""


def excerpts() -> dict[str, bytes]:
    """Real traces, a few events of each kind, and the same with half of the ordinary events only."""
    whole = {name: (DATA / f"{name}.json").read_bytes() for name in EXCERPTS}
    return {**whole, **{f"{name}, lean": _lean(text) for name, text in whole.items()}}


def _lean(text: bytes) -> bytes:
    begin, end = text.index(b'"traceEvents": [') + 16, text.rindex(b"\n  ]")
    events = [event for event in BETWEEN.split(text[begin:end]) if not ODD.search(event)]
    return text[:begin] + b",".join(events[::2]) + text[end:]


def mutated(seed: int, whole: list[bytes]) -> tuple[str, bytes]:
    """(how, a broken trace). Half of them are broken once more as text; some are packed, and broken after."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    text = KINDS[kind](rng.choice(whole), rng)
    if rng.random() < 0.3 and text:
        other = rng.choice([name for name in KINDS if name != "structure"])
        text, kind = KINDS[other](text, rng), f"{kind}+{other}"
    if rng.random() < 0.05 and text:
        text, kind = _packed(text, rng), "gzip"
    return kind, text


def _packed(text: bytes, rng: random.Random) -> bytes:
    import gzip

    made = gzip.compress(text, 1, mtime=0)
    return rng.choice((flip, delete, truncate, duplicate))(made, rng)
