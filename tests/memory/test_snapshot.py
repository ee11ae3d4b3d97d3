"""Torch's snapshots become windows; whatever else a file holds is one RecordError, and soon."""

import os
import pickle
import random
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from hotlap.memory import snapshot
from hotlap.memory.snapshot import read_snapshot
from hotlap.records.errors import RecordError
from hotlap.records.memory import Blocks, Events, MemoryWindow, Segment

from . import snapshots
from .snapshots import BASE, TIME_US, TORCH, USER, early, frame, today


def written(folder: Path, made: Any, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(made if isinstance(made, bytes) else pickle.dumps(made, protocol))
    return path


def read(folder: Path, made: Any, protocol: int = 4) -> list[MemoryWindow]:
    return read_snapshot(written(folder, made, protocol))


def refused(folder: Path, made: Any) -> str:
    """Why a file is refused; its name leads."""
    path = written(folder, made)
    with pytest.raises(RecordError) as error:
        read_snapshot(path)
    text = str(error.value)
    assert text.startswith(str(path))
    return text.removeprefix(f"{path} ").removeprefix("is no memory snapshot, or damaged: ")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_snapshot_of_today(tmp_path: Path, protocol: int) -> None:
    (window,) = read(tmp_path, today(), protocol)
    assert (window.when, window.source, window.device) == ("snapshot", "allocator", "cuda:0")
    assert window.frames == ((USER, 20, "step"), (USER, 40, "<module>"))
    assert window.stacks == ((0, 1), (1,))
    assert window.events == Events(
        actions=(2, 0, 0, 1, 0, 1, 3),
        addresses=(BASE, BASE, *(BASE + 1024,) * 4, BASE + (4 << 20)),
        bytes=(2 << 20, 1000, 600, 600, 2000, 2000, 2 << 20),
        times=tuple(1000 * (TIME_US + after) for after in (0, 1, 2, 3, 10, 11, 13)),
        stacks=(0, 0, 1, 0, 1, 1, -1),
    )
    assert window.blocks == Blocks(
        addresses=(BASE, BASE + (8 << 20), BASE + (9 << 20) + (1 << 19)),
        bytes=(1000, 1 << 20, 5),
        rounded=(1024, 1 << 20, 1 << 19),
        stacks=(0, -1, 1),
        segments=(0, 1, 1),
    )
    assert window.segments == (
        Segment(address=BASE, bytes=2 << 20, allocated=1024, free=(2 << 20) - 3072),
        Segment(address=BASE + (8 << 20), bytes=2 << 20, allocated=3 << 19, free=1 << 19, graph=True),
    )
    assert (window.allocated_bytes, window.reserved_bytes, window.peak_bytes) == (1024 + (3 << 19), 4 << 20, None)
    assert (window.left_out, window.mallocs) == (0, 1)
    assert window.ran_out is not None
    assert (window.ran_out.asked_bytes, window.ran_out.free_bytes) == (64 << 30, 1 << 20)
    assert window.ran_out.frames == window.frames


def test_expandable_segments(tmp_path: Path) -> None:
    (window,) = read(tmp_path, today(expandable=True))
    assert (window.events.actions[0], window.events.actions[-1], window.mallocs) == (2, 3, 1)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_snapshot_of_torch_2_0(tmp_path: Path, protocol: int) -> None:
    (window,) = read(tmp_path, early(), protocol)
    assert window.device == "cuda:1"
    assert window.frames == ((USER, 20, "step"), (USER, 40, "<module>"))
    assert window.stacks == ((0, 1),)
    assert window.events == Events(
        actions=(2, 0, 1, 0), addresses=(BASE,) * 4, bytes=(100,) * 4, times=(0,) * 4, stacks=(0,) * 4
    )
    assert window.blocks == Blocks(
        addresses=(BASE, BASE + 512), bytes=(100, 1024), rounded=(512, 1024), stacks=(0, -1), segments=(0, 0)
    )
    assert window.segments == (Segment(address=BASE, bytes=2 << 20, allocated=1536, free=(2 << 20) - 1536),)
    assert window.ran_out is None


def test_segments_alone(tmp_path: Path) -> None:
    """As `torch.cuda.memory_snapshot()` gives them, and without blocks."""
    (window,) = read(tmp_path, today()["segments"])
    assert window.events == Events()
    assert len(window.segments) == 2
    (window,) = read(tmp_path, [{"address": 7, "total_size": 9, "allocated_size": 5}])
    assert window.segments == (Segment(address=7, bytes=9, allocated=5),)


def test_a_history_alone_and_nothing(tmp_path: Path) -> None:
    made = {"device_traces": [[], [{"action": "alloc", "addr": 1, "size": 2}], []], "segments": []}
    (window,) = read(tmp_path, made)
    assert window.device == "cuda:1"
    assert window.events == Events(actions=(0,), addresses=(1,), bytes=(2,), times=(0,), stacks=(-1,))
    assert read(tmp_path, {"segments": [], "device_traces": [[], []]}) == []


def test_the_curve_is_that_of_what_is_allocated(tmp_path: Path) -> None:
    """What another stream still uses is no longer allocated. The end of that use counts where it is all that was
    recorded."""
    made = today()
    (window,) = read(tmp_path, made)
    change = {0: 1, 1: -1}
    columns = zip(window.events.actions, window.events.bytes, strict=True)
    assert sum(change.get(action, 0) * size for action, size in columns) == 1000
    made["device_traces"][0] = [one for one in made["device_traces"][0] if one["action"] != "free_requested"]
    (window,) = read(tmp_path, made)
    assert window.events.actions == (2, 0, 0, 1, 0, 3)


def test_the_newest_events_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_EVENTS", 3)
    (window,) = read(tmp_path, today())
    assert (window.events.actions, window.left_out) == ((0, 1, 3), 4)
    assert window.ran_out is not None


def kept(folder: Path, *stacks: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What is kept of stacks: the files."""
    trace = [{"action": "alloc", "addr": at, "size": 1, "frames": frames} for at, frames in enumerate(stacks)]
    (window,) = read(folder, {"device_traces": [trace]})
    return [tuple(window.frames[one][0] for one in window.stacks[at]) if at >= 0 else () for at in window.events.stacks]


def test_frames_of_the_user_where_there_are_any(tmp_path: Path) -> None:
    library = "/opt/py/lib/python3.11/threading.py"
    built = "/src/pytorch/torch/nn/modules/module.py"
    stacks = [
        [frame("??", 0, "x"), frame("a.cpp", 1, "y"), frame("/src/pytorch/torch/nn/functional.py", 2, "linear")],
        [frame(built, 1, "_call_impl"), frame(USER, 5, "step"), frame(library, 7, "run"), frame("<string>", 1, "f")],
        [frame("a.cu", 1, "y"), frame("", 0, "z")],
        [frame(TORCH, 1, "x"), frame(library, 2, "y")],
        [],
    ]
    assert kept(tmp_path, *stacks) == [
        ("/src/pytorch/torch/nn/functional.py",),
        (USER,),
        (),
        (TORCH, library),
        (),
    ]


def test_a_command_that_is_installed_is_the_users(tmp_path: Path) -> None:
    there = "/opt/py/lib/python3.11/site-packages/"
    main = frame(f"{there}timm/train.py", 9, "<module>")
    runs = frame("<frozen runpy>", 198, "_run_module_as_main")
    stacks = [
        [frame(f"{there}timm/models/vit.py", 3, "f"), frame(f"{there}torch/nn/functional.py", 3, "g"), main, runs]
    ]
    assert kept(tmp_path, *stacks) == [(f"{there}timm/models/vit.py", f"{there}timm/train.py")]


def test_names_are_cut_and_stacks_too(tmp_path: Path) -> None:
    made = [frame("/home/ada/" + "x" * 9000 + ".py", -3, "\udcff" * 9000) for _ in range(200)]
    made += [frame(USER, at, "deep") for at in range(200)]
    (window,) = read(tmp_path, {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": made}]]})
    assert len(window.stacks[0]) == snapshot.MAX_FRAMES
    assert [len(name) for name in window.frames[0][::2]] == [snapshot.MAX_NAME] * 2  # type: ignore[arg-type]
    assert window.frames[0][1] == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s["segments"][0].pop("address"), "a field `address` is missing"),
        (lambda s: s["segments"][0].update(total_size="7"), "a field `total_size` is a str"),
        (lambda s: s["segments"][0].update(total_size=-1), "a field `total_size` is out of range"),
        (lambda s: s["segments"][0].update(device=1 << 70), "a field `device` is out of range"),
        (lambda s: s["segments"][0].update(blocks=7), "its blocks are no list"),
        (lambda s: s["segments"][0].update(blocks=s["segments"][1]["blocks"]), "it holds the same blocks twice"),
        (lambda s: s["segments"][0]["blocks"].append(7), "its blocks hold what is no dict"),
        (lambda s: s["segments"][0]["blocks"][0].pop("state"), "a block has no state"),
        (lambda s: s["segments"][0]["blocks"][0].update(size=True), "a field `size` is a bool"),
        (lambda s: s["segments"][0]["blocks"][0].update(frames=7), "its frames are no list"),
        (lambda s: s["segments"][0]["blocks"][0].update(frames=[7]), "a frame has no file, line or function"),
        (lambda s: s.update(segments={}), "its segments are no list"),
        (lambda s: s["segments"].append([]), "its segments hold what is no dict"),
        (lambda s: s.update(device_traces=7), "its device_traces are no list"),
        (lambda s: s["device_traces"].append(7), "its events are no list"),
        (lambda s: s["device_traces"].append(s["device_traces"][0]), "it holds the same events twice"),
        (lambda s: s["device_traces"][0].append(7), "its events hold what is no dict"),
        (lambda s: s["device_traces"][0][1].pop("action"), "an event has no action"),
        (lambda s: s["device_traces"][0][1].update(action=[]), "an event has no action"),
        (lambda s: s["device_traces"][0][1].update(addr=None), "a field `addr` is missing"),
        (lambda s: s["device_traces"][0][1].update(time_us=1 << 63), "a field `time_us` is out of range"),
        (lambda s: s["device_traces"][0][-1].pop("size"), "a field `size` is missing"),
        (lambda s: s["segments"].extend({"device": at, "address": 1, "total_size": 1} for at in range(5000)),
         "it has 5000 devices"),
    ],
)  # fmt: skip
def test_fields_that_are_wrong(tmp_path: Path, change: Any, why: str) -> None:
    made = today()
    change(made)
    assert refused(tmp_path, made) == why


def test_sums_that_no_number_holds(tmp_path: Path) -> None:
    made = [{"address": 1, "total_size": snapshot.LARGEST, "allocated_size": 1} for _ in range(9000)]
    assert refused(tmp_path, made) == "its numbers add up to more than there can be"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"", "Ran out of input"),
        (b'{"traceEvents": []}', "invalid load key"),
        (b"PK\3\4 a zip", "persistent id"),
        (pickle.dumps(today())[:-400], "truncated"),
        (pickle.dumps({"model": {}}), "neither segments nor a history"),
        (pickle.dumps(7), "neither segments nor a history"),
        (pickle.dumps({"segments": [], "x": Path("/")}), "it asks for pathlib."),
        (b"cos\nsystem\n(S'touch /tmp/hotlap-was-here'\ntR.", "it asks for os.system, and snapshots hold no classes"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "it asks for os.system"),
        (b"(S'x'\nios\nsystem\n.", "it asks for os.system"),
        (b"\x80\x02\x82\x01.", "extension code"),
        (b"]]R.", ""),
        (b"}}b.", ""),
        (b"\x80\x05\x96\1\0\0\0\0\0\0\0x\x94\x98h\0K\1a.", ""),
    ],
)
def test_what_is_no_snapshot(tmp_path: Path, made: bytes, why: str) -> None:
    assert why in refused(tmp_path, made)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"Nr\xff\xff\xff\x7f.", "unpacks to more than"),
        (b"Nr\xff\xff\xff\x0f.", "unpacks to more than"),
        (b"Np9999999999\n.", ""),
        (b"Np99999999999999999999999\n.", ""),
        (b"\x95" + b"\xff" * 7 + b"\x7f.", ""),
        (b"\x8e" + struct.pack("<Q", 1 << 40) + b"x.", ""),
        (b"\x8e" + b"\xff" * 8 + b"x.", ""),
        (b"\x8d" + struct.pack("<Q", 1 << 35) + b"x.", ""),
        (b"X\xff\xff\xff\x7fx.", ""),
        (b"\x8b\xff\xff\xff\x7fx.", ""),
        (b"\x8b\xff\xff\xff\xffx.", "negative"),
        (b"L" + b"9" * 100_000 + b"L\n.", "integer string conversion"),
        (b"I" + b"9" * 100_000 + b"\n.", ""),
        (b"}" * (30 << 20), "unpacks to more than"),
        (b"(" * 1_000_000 + b".", ""),
        (b"N" + b"2" * 3_000_000 + b".", "neither"),
        (b")" + b"\x85" * 3_000_000 + b".", "neither"),
        (b"]" * 1_000_000 + b"a" * 999_999 + b".", "no dict"),
        (b"})" + b"\x85" * 3_000_000 + b"Ns.", "crashed"),
    ],
)
def test_bombs(tmp_path: Path, made: bytes, why: str) -> None:
    """An index far into the memo; lengths that the file does not have; numbers with many digits; containers without
    end; a key whose hash goes too deep for the C stack."""
    assert why in refused(tmp_path, made)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20


def test_doubled_lists_are_not_walked(tmp_path: Path) -> None:
    """Each list holds the one before twice: 2 to the 50 ends."""
    doubled = b"]\x94" + b"".join(b"](h" + bytes([at]) + b"h" + bytes([at]) + b"e\x94" for at in range(50))
    assert "no dict" in refused(tmp_path, b"\x80\x04" + doubled + b".")
    many: list[Any] = [{"action": "alloc", "addr": 1, "size": 1}] * 1000
    assert "twice" in refused(tmp_path, {"device_traces": [many] * 1000})


def test_keys_that_collide_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LEAST_SECONDS", 1)
    modulus = (1 << 61) - 1
    keys = b"".join(b"\x8a\x0b" + (at * modulus).to_bytes(11, "little") + b"N" for at in range(150_000))
    assert "processor time" in refused(tmp_path, b"}(" + keys + b"u.")


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, why in ((tmp_path, "is no file"), (tmp_path / "none", "No such file"), (Path("/dev/zero"), "is no file")):
        with pytest.raises(RecordError, match=why):
            read_snapshot(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="is no file"):
        read_snapshot(tmp_path / "pipe")
    monkeypatch.setattr(snapshot, "MAX_FILE", 10)
    with pytest.raises(RecordError, match="are not read"):
        read(tmp_path, today())


def test_broken_snapshots(tmp_path: Path) -> None:
    """Each ends in windows or a RecordError. `benchmarks/fuzz_snapshots.py` reads 100,000."""
    read_ones = refused_ones = 0
    for seed in range(300):
        kind, made = snapshots.mutated(seed)
        try:
            for window in read(tmp_path, made):
                assert len({len(column) for column in (window.events.actions, window.events.stacks)}) == 1, kind
                assert all(-1 <= at < len(window.stacks) for at in (*window.events.stacks, *window.blocks.stacks))
                assert all(at < len(window.frames) for stack in window.stacks for at in stack)
            read_ones += 1
        except RecordError as error:
            assert str(tmp_path) in str(error)
            refused_ones += 1
    assert read_ones > 50
    assert refused_ones > 100


def test_random_bytes(tmp_path: Path) -> None:
    rng = random.Random(36)
    for _ in range(100):
        made = bytes(rng.choice(snapshots.CODES)[0] if rng.random() < 0.7 else rng.randrange(256) for _ in range(60))
        refused(tmp_path, made)


def test_the_same_seed_gives_the_same_file() -> None:
    assert [snapshots.mutated(seed) for seed in range(30)] == [snapshots.mutated(seed) for seed in range(30)]
