"""Torch's own memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them for https://pytorch.org/memory_viz.

They are pickles of plain containers, strings and numbers, so no class is ever looked up. That does not make Python's
unpickler safe for files from elsewhere: a few bytes have it take gigabytes (a large index into its memo), keys that
collide take hours, and the hash of nested tuples overflows the C stack. To see all that beforehand would take a second
unpickler. A process of its own with bounds on memory and processor time is less, and quick; it hands back columns.
"""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import re
import resource
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import psutil

from hotlap.records.errors import RecordError, unable
from hotlap.records.memory import ACTIONS, Blocks, Events, Frame, MemoryWindow, Numbers, OutOfMemory, Segment
from hotlap.records.whose import users

MAX_FILE: Final = 4 << 30
MAX_EVENTS: Final = 1_000_000
"""Of a device, the newest."""
MAX_DEVICES: Final = 1024
MAX_FRAMES: Final = 64
"""Of a stack, the innermost."""
MAX_NAME: Final = 4096
"""Letters of a file's or a function's name."""
MAX_REASON: Final = 200
MAX_COLUMNS: Final = 1 << 30
"""Bytes of what comes back."""
LEAST_MEMORY: Final = 512 << 20
MEMORY_PER_BYTE: Final = 16
"""Memory that may be taken for a byte of the file: torch's files take 3 to 5, those of torch 2.0 up to 12."""
LEAST_SECONDS: Final = 60
BYTES_PER_SECOND: Final = 10 << 20
"""A file may take so much longer; torch's are read at 80 MB/s and more."""
LARGEST: Final = 1 << 62
"""Of a number in the file."""
NO_CLASS: Final = "it asks for {}, and snapshots hold no classes"
UNREADABLE: Final = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, BufferError, EOFError, ImportError, LookupError,
    RuntimeError, SystemError, TypeError, ValueError,
)  # fmt: skip
"""What the unpickler raises for damage."""
DRIVER: Final = {
    "segment_alloc": "reserve",
    "segment_map": "reserve",  # a part of an expandable segment
    "segment_free": "release",
    "segment_unmap": "release",
}
PLACE: Final = itemgetter("filename", "line", "name")
"""Of a frame."""
ALLOCATED: Final = "active_allocated"
NO_POOL: Final = (0, 0)
STANDARD: Final = re.compile(r".*?[/\\]lib(?:64)?[/\\]python\d+(?:\.\d+)?t?[/\\]")
"""Python's own library, on any machine."""
TORCH: Final = ("nn/modules/module.py", "autograd/graph.py", "_tensor.py", "optim/optimizer.py")
"""Files that are known to lie in torch's folder, wherever that is."""
AGENT: Final = "/hotlap/agent/"


def read_snapshot(path: Path) -> list[MemoryWindow]:
    """The memory of each device that has a segment or a history.

    An event `free` is torch's `free_requested`: there torch takes a block out of its `allocated_bytes`, while
    `free_completed`, once other streams are done with it, takes it out of `active_bytes`. It counts only where the
    other was not recorded. Sizes of events are those that were asked for (torch's `requested_bytes`): the trace does
    not tell what the allocator added; blocks tell both. Snapshots of other backends have the same form: they are
    `cuda:N` too. Raises RecordError that names the file and what is wrong with it.
    """
    with unable(f"read {path}"):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(f"{path} is no file")
        if status.st_size > MAX_FILE:
            raise RecordError(f"{path} has {status.st_size / 2**30:.1f} GiB; more than {MAX_FILE >> 30} are not read")
        memory = min(LEAST_MEMORY + MEMORY_PER_BYTE * status.st_size, psutil.virtual_memory().available)
        seconds = LEAST_SECONDS + status.st_size // BYTES_PER_SECOND
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
                found = pool.submit(_bounded, path, memory, seconds).result()
        except BrokenProcessPool:
            ended = f"what read it ran out of memory, crashed, or took {seconds} s of processor time"
            raise RecordError(f"{path} is no memory snapshot, or damaged: {ended}") from None
    if isinstance(found, str):
        raise RecordError(f"{path} {found}")
    return msgspec.msgpack.decode(found, type=list[MemoryWindow])


def _bounded(path: Path, memory: int, seconds: int) -> bytes | str:
    """The windows, packed; or what is wrong. Runs in a process of its own, which ends thereafter."""
    faulthandler.disable()  # what is wrong is told by the process that waits
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    gc.disable()  # it would walk millions of objects again and again, and none of them is garbage
    bound = psutil.Process().memory_info().vms + memory
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, bound)):
        hard = resource.getrlimit(kind)[1]
        try:
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        except (OSError, ValueError):
            continue  # macOS bounds no memory
    try:
        with path.open("rb") as file:
            packed = msgspec.msgpack.encode(windows(file))
    except MemoryError:
        return f"unpacks to more than {memory >> 20} MiB: it is damaged, or so much memory is not free"
    except RecordError as error:
        return f"is no memory snapshot, or damaged: {error}"
    except OverflowError:
        return "is no memory snapshot, or damaged: its numbers add up to more than there can be"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return packed if len(packed) <= MAX_COLUMNS else f"unpacks to more than {MAX_COLUMNS >> 20} MiB"


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise RecordError(NO_CLASS.format(f"{module}.{name}"[:MAX_REASON]))


def windows(file: BinaryIO) -> list[MemoryWindow]:
    """What a snapshot holds. It is unpickled in this process: only where that is bounded. Raises RecordError, and
    MemoryError where a bound on memory is reached."""
    try:
        found = _Plain(file).load()
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise RecordError(reason[:MAX_REASON] or type(error).__name__) from None
    if isinstance(found, list):
        found = {"segments": found}  # of `torch.cuda.memory_snapshot()`
    if not isinstance(found, dict) or not found.keys() & {"segments", "device_traces"}:
        raise RecordError("it holds neither segments nor a history")
    once = _Once()
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for segment in once.dicts(found, "segments"):
        segments.setdefault(_number(segment, "device", 0), []).append(segment)
    listed = enumerate(once.list(found.get("device_traces", []), "device_traces"))
    traces = {at: once.dicts({"events": one}, "events") for at, one in listed}
    devices = sorted({*segments, *(at for at, trace in traces.items() if trace)})
    if len(devices) > MAX_DEVICES:
        raise RecordError(f"it has {len(devices)} devices")
    return [_window(at, segments.get(at, []), traces.get(at, []), once) for at in devices]


class _Once:
    """Lists that are walked. Each is walked once, so that no more work than the file is long comes from it."""

    def __init__(self) -> None:
        self._walked: set[int] = set()

    def list(self, found: Any, name: str) -> Sequence[Any]:
        if not isinstance(found, list):
            raise RecordError(f"its {name} are no list")
        if found and id(found) in self._walked:
            raise RecordError(f"it holds the same {name} twice")
        self._walked.add(id(found))
        return found

    def dicts(self, of: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
        """The list of that name, of dicts; empty where there is none."""
        found = self.list(of.get(name, []), name)
        if not {*map(type, found)} <= {dict}:
            raise RecordError(f"its {name} hold what is no dict")
        return found


def _number(of: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A number of 0 or more."""
    value = of.get(name, default)
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    what = "missing" if value is None else "out of range" if type(value) is int else f"a {type(value).__name__}"
    raise RecordError(f"a field `{name}` is {what}")


def _column(entries: Sequence[Mapping[str, Any]], name: str, default: int | None = None) -> list[int]:
    """The same of many."""
    found = [entry.get(name, default) for entry in entries]
    if not ({*map(type, found)} <= {int} and min(found, default=0) >= 0 and max(found, default=0) <= LARGEST):
        found = [_number(entry, name, default) for entry in entries]  # one of them raises
    return found


class _Stacks:
    """Numbers frames and stacks. Torch shares lists of frames, and their frames: what is the same object is looked at
    once."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._places: dict[tuple[Any, Any, Any], int] = {}
        self._stacks: dict[Numbers, int] = {}
        self._lists: dict[int, int] = {}
        self._shared: dict[bytes, int] = {}

    def number(self, of: Mapping[str, Any]) -> int:
        """Of the stack of an entry or a block; -1 where it has none."""
        frames = of.get("frames")
        if not frames:
            return -1
        at = self._lists.get(id(frames))
        if at is None:
            if not isinstance(frames, list):
                raise RecordError("its frames are no list")
            same = np.fromiter(frames, object, len(frames)).tobytes()  # which objects they are: their addresses
            at = self._shared.get(same)
            if at is None:
                at = self._shared[same] = self._stack(frames)
            self._lists[id(frames)] = at
        return at

    def _stack(self, frames: Sequence[Any]) -> int:
        try:
            places = [*map(PLACE, frames)]
            numbers = [*map(self._places.get, places)]
        except (LookupError, TypeError):
            raise RecordError("a frame has no file, line or function") from None
        found = tuple(self._frame(place) if at is None else at for at, place in zip(numbers, places, strict=True))
        return self._stacks.setdefault(found, len(self._stacks))

    def _frame(self, place: tuple[Any, Any, Any]) -> int:
        """The number of a Python frame; -1 of C++."""
        file, line, function = place
        if not isinstance(file, str) or not isinstance(function, str):
            raise RecordError("a frame has no file, line or function")
        at = -1
        if file.endswith(".py") or file.startswith("<"):  # others are of C++: `??`, `Copy.cpp`
            file, function = (name[:MAX_NAME].encode("utf-8", "replace").decode() for name in (file, function))
            frame = (file, line if type(line) is int and 0 <= line <= LARGEST else 0, function)
            at = self._frames.setdefault(frame, len(self._frames))
        self._places[place] = at
        return at

    def of_the_user(self) -> tuple[tuple[Frame, ...], tuple[Numbers, ...], list[int]]:
        """Frames and stacks of the user's code, and for each number of a stack the one in these (-1: none). A stack
        without any of the user's keeps its Python frames."""
        frames = list(self._frames)
        own = self._own(frames)
        used: dict[int, int] = {}
        stacks: dict[Numbers, int] = {}
        places = []
        for stack in self._stacks:
            python = [one for one in stack if one >= 0]
            kept = ([one for one in python if own[one]] or python)[:MAX_FRAMES]
            numbers = tuple(used.setdefault(one, len(used)) for one in kept)
            places.append(stacks.setdefault(numbers, len(stacks)) if numbers else -1)
        return tuple(frames[one] for one in used), tuple(stacks), [*places, -1]

    def _own(self, frames: Sequence[Frame]) -> list[bool]:
        """Whether frames are the user's. Where torch, Python's library and the main module lay is told by the frames:
        the file is from any machine."""
        files = {file for file, _, _ in frames}
        torch = tuple({file.removesuffix(end) for end in TORCH for file in files if file.endswith(f"/torch/{end}")})
        torch += tuple({file.partition(AGENT)[0] + "/hotlap/" for file in files if AGENT in file})
        modules = {at for at, (_, _, function) in enumerate(frames) if function == "<module>"}
        outermost = (next((one for one in reversed(stack) if one in modules), None) for stack in self._stacks)
        mains = Counter(frames[at][0] for at in outermost if at is not None)
        main = mains.most_common(1)[0][0].rpartition("/")[0] + "/" if mains else ""
        standard = {file: (match[0],) if (match := STANDARD.match(file)) else () for file in files}
        theirs = {file: users(file, torch, standard[file], main) for file in files}
        return [theirs[file] for file, _, _ in frames]


def _counted(trace: Sequence[Mapping[str, Any]]) -> tuple[Numbers, list[Mapping[str, Any]], int]:
    """The newest entries that are events: the numbers of their actions, they, and how many came before them."""
    kinds: list[Any] = [entry.get("action") for entry in trace]
    if not {*map(type, kinds)} <= {str}:
        raise RecordError("an event has no action")
    freed = "free_requested" if "free_requested" in kinds else "free_completed"
    events = {name: ACTIONS.index(action) for name, action in {"alloc": "alloc", freed: "free", **DRIVER}.items()}
    found = [at for at, kind in enumerate(kinds) if kind in events]
    left_out = max(0, len(found) - MAX_EVENTS)
    newest = found[left_out:]
    return tuple(events[kinds[at]] for at in newest), [trace[at] for at in newest], left_out


def _segment(segment: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> Segment:
    sizes: dict[Any, list[int]] = {}
    for block in blocks:
        sizes.setdefault(block["state"], []).append(_number(block, "size"))
    return Segment(
        address=_number(segment, "address"),
        bytes=_number(segment, "total_size"),
        allocated=sum(sizes.get(ALLOCATED, ())) if blocks else _number(segment, "allocated_size", 0),
        free=max(sizes.get("inactive", ()), default=0),
        graph=segment.get("segment_pool_id") not in (None, NO_POOL),
        stream=_number(segment, "stream", 0),
    )


def _blocks(
    segment: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], at: int, stacks: _Stacks
) -> Iterator[tuple[int, int, int, int, int]]:
    """Of what is allocated: address, bytes, bytes with rounding, stack, segment. Until torch 2.0 blocks had no address,
    and their `history` began with the newest allocation."""
    address = _number(segment, "address")
    for block in blocks:
        if not isinstance(block.get("state"), str):
            raise RecordError("a block has no state")
        address, size = _number(block, "address", address), _number(block, "size")
        if block["state"] == ALLOCATED:
            history = block.get("history")
            newest = history[0] if isinstance(history, list) and history else None
            made = newest if isinstance(newest, dict) else block
            requested = _number(made, "requested_size" if made is block else "real_size", size)
            yield address, requested, size, stacks.number(made), at
        address += size


def _window(device: int, segments: Sequence[Any], trace: Sequence[Any], once: _Once) -> MemoryWindow:
    """Of one device, all that is known."""
    stacks = _Stacks()
    rows: list[tuple[int, ...]] = []
    reserved = []
    for at, segment in enumerate(segments):
        inside = once.dicts(segment, "blocks")
        rows += _blocks(segment, inside, at, stacks)
        reserved.append(_segment(segment, inside))
    actions, entries, left_out = _counted(trace)
    by = [stacks.number(entry) for entry in entries]
    out = next((entry for entry in trace if entry["action"] == "oom"), None)
    out_by = stacks.number(out) if out else -1
    frames, kept, places = stacks.of_the_user()
    addresses, sizes, rounded, block_by, inside_of = zip(*rows, strict=True) if rows else ((),) * 5
    return MemoryWindow(
        when="snapshot",
        device=f"cuda:{device}",
        source="allocator",
        frames=frames,
        stacks=kept,
        blocks=Blocks(
            addresses=addresses,
            bytes=sizes,
            rounded=rounded,
            stacks=tuple(places[one] for one in block_by),
            segments=inside_of,
        ),
        events=Events(
            actions=actions,
            addresses=tuple(_column(entries, "addr")),
            bytes=tuple(_column(entries, "size")),
            times=tuple(1000 * time for time in _column(entries, "time_us", 0)),
            stacks=tuple(places[one] for one in by),
        ),
        segments=tuple(reserved),
        left_out=left_out,
        allocated_bytes=sum(one.allocated for one in reserved),
        reserved_bytes=sum(one.bytes for one in reserved),
        mallocs=actions.count(ACTIONS.index("reserve")),
        ran_out=None
        if out is None
        else OutOfMemory(
            asked_bytes=_number(out, "size"),
            free_bytes=_number(out, "device_free") if "device_free" in out else None,
            frames=tuple(frames[one] for one in (kept[places[out_by]] if places[out_by] >= 0 else ())),
        ),
    )
