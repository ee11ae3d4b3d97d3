"""Record files: what is written reads back, what is broken is refused by name, and nothing else ever comes out."""

import contextlib
import copy
import json
import os
import resource
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotlap.records import diagnosis, run, tune, utilisation
from hotlap.records.diagnosis import Diagnosis, Finding, Place, Spread
from hotlap.records.errors import RecipeError, RecordError
from hotlap.records.files import (
    MAX_DOCUMENT,
    MAX_LINE,
    MAX_RECIPE,
    encode,
    new_folder,
    read_bytes,
    read_lines,
    read_recipe,
    read_record,
    read_words,
    write_atomic,
    write_recipe,
    write_record,
)
from hotlap.records.run import (
    BesidesFacts,
    CompiledFunction,
    Environment,
    ExchangeFacts,
    Facts,
    Gpu,
    HostFacts,
    Hung,
    LeftOut,
    Lever,
    LoaderFacts,
    MemoryFacts,
    OptimizerFacts,
    Phases,
    Problem,
    RootFacts,
    Run,
    Step,
    UnusedFacts,
    Versions,
    WastedFacts,
)
from hotlap.records.session import LeverUse, Session
from hotlap.records.tune import (
    Dropped,
    Fitted,
    Interval,
    Kept,
    LeverLine,
    Open,
    Parity,
    ProbeLine,
    Proof,
    Recipe,
    RecipeEvidence,
    RecipeLever,
    Reference,
    Trial,
    Tune,
    Turn,
    Worth,
)
from hotlap.records.utilisation import Products, Utilisation

PHASES = Phases(data=1.0, h2d=0.5, forward=2.25, backward=4.0, optimizer=0.125, other=1e-3)
ENVIRONMENT = Environment(
    hotlap="0.1.0", python="3.11", os="Linux", cpu="ein «Prozessor»", cores=8, memory_gib=31.5, driver="570",
    gpus=(Gpu(name="H100", memory_gib=79.6),), variables={"OMP_NUM_THREADS": "1"}, git_commit="a" * 40, git_dirty=True,
)  # fmt: skip
LEVER = Lever(name="compile", settings={"mode": "default", "nested": [1, {"a": 0.5}]})
STEP = Step(
    step=3, time=1.79e9, wall_ms=8.0, gpu_ms=7.5, phases=PHASES, gpu_phases=PHASES, loss=-2.5, losses=(None, 0.1),
    nonfinite=True, samples=64, tokens=640, kind="inference", evaluation=True, compiles=2, skipped=True, probe=True,
    backlog_ms=0.2,
)  # fmt: skip
FACTS = Facts(
    pid=1, rank=2, world=4, argv=("train.py", "--lr", "3e-4", "\x1b[2J\u202e"), python="3.11", torch="2.13",
    cuda="13.0", device="cuda", device_name="H100", capability=(9, 0), mode="train", samples_from="loader", in_flight=4,
    loaders=(LoaderFacts(dataset="D", iterable=True, workers=2, collate=("/c.py", 2, "f"), file="/a b.py", line=3),),
    host=HostFacts(steps=9, faults=1.5, system_ms=0.25, gc_ms=0.125, collections=3),
    wasted=WastedFacts(place=("/a b.py", 4, "step"), share=0.5, part=0.5),
    besides=(BesidesFacts(name="Net", of=9, steps=9, calls=18, took_ms=4.5, place=("/a b.py", 5, "step")),),
    unused=(
        UnusedFacts(
            name="Net", place=("/a b.py", 6, "act"), steps=9, calls=90, rows=90, took_ms=4.5, unused_calls=80,
            unused_rows=80, unused_took_ms=4.25,
        ),
    ),
    hung=Hung(waited_s=95.5, worker=3, worker_pid=17, alive=True, file="/a b.py", line=4),
    roots=(RootFacts(name="Net", parameters=10**10, modules=4, devices=("cuda:0",), dtypes=("bfloat16",),
                     exchange=ExchangeFacts(compute_ms=4.0, exchange_ms=9.5, hidden_ms=2.0)),),
    optimizers=(OptimizerFacts(name="SGD", builtin=False, tensors=3, fused=None, capturable=True),),
    compiled=(CompiledFunction(file="/a b.py", function="forward", line=3, graphs=2, breaks=(5,), failed_at=7),),
    memory=MemoryFacts(peak_bytes=2**40, peak_reserved_bytes=2**41, total_bytes=2**42, retries=1),
)  # fmt: skip
DIAGNOSIS = Diagnosis(
    mode="train", bound="input", step_ms=8.0, spread=Spread(p10=7.0, p50=8.0, p90=9.5), throughput=800.0, phases=PHASES,
    findings=(Finding(id="input", bound="input", share=0.6, where=Place(file="t.py", line=4), levers=("compile",)),),
    unknown=("samples/s",), tokens_s=1e5,
    utilisation=Utilisation(mfu=0.25, flops=7e12, products=(Products(dtype="bf16", flops=7e12, tensor_cores=True),)),
)  # fmt: skip
PARITY = Parity(ok=True, level="numeric", why="losses agree", loss_gap=1e-5, gradient_gap=0.0, samples="same", steps=40)
LINE = LeverLine(lever="compile", left_out="the script compiles the model itself", step=3)
PROBE = ProbeLine(what="update", step=3, gradient_norm=0.5, update=(None, 0.25), rounding=(0,))
TRIAL = Trial(
    id=3, purpose="try", levers=(LEVER,), folder="trials/003", outcome="measured", parity=PARITY,
    left_out=(LeftOut(lever=LEVER, why="no hand-written attention was found"),),
)  # fmt: skip
WORTH = Worth(ratio=1.2, interval=Interval(low=1.1, high=1.3), beside=("tf32",), by="switching")
PROOF = Proof(levers=(LEVER,), ratio=1.3, interval=Interval(low=1.2, high=1.4), proved=True, parity=PARITY, at_s=90.0)
TUNE = Tune(
    command=("python", "t.py"), speedup=1.3, interval=Interval(low=1.2, high=1.4), starts=2, turns=16, gain=True,
    kept=(Kept(lever="compile", settings={"mode": "default"}, risk="numeric", meaning="m", worth=WORTH),),
    dropped=(Dropped(lever="tf32", why="no gain", ratio=0.99),), parity=PARITY, baseline=DIAGNOSIS, tuned=None,
    proofs=(PROOF,), unproved=Open(levers=(LEVER,), ratio=1.1, why="the budget ended"), trials=(TRIAL,),
    environment=ENVIRONMENT,
    fitted=(Fitted(lever="checkpoint-blocks", settings={"every": 2}, risk="exact", meaning="m"),),
    reference=Reference(
        parts=2, levers=(LEVER,), time_ratio=1.3, interval=Interval(low=1.2, high=1.4), turns=8, before_ms=5.0,
        after_ms=6.5, memory_before_bytes=2.0**30, memory_after_bytes=2.0**29, parity=PARITY,
    ),
)  # fmt: skip
RUN = Run(
    command=("python", "t.py", ""), cwd="/w", environment=ENVIRONMENT, status="failed", exit_code=3, signal=9,
    started=1.0, wall_s=2.0, seed=4, levers=(LEVER,), recipe="r.toml",
    versions=Versions(python="3.11", torch="2.13", cuda="13.0", packages={"numpy": "2.4"}),
)  # fmt: skip
PROBLEM = Problem(where="loader", what="boom", trace="Traceback\n  …", lever="compile", time=3.0)
TURN = Turn(side=3, first=40, last=56, levers=("compile",), step_ms=8.0, rows=32.0)
RECORDS: list[Any] = [RUN, STEP, FACTS, PROBLEM, DIAGNOSIS, LINE, PROBE, TRIAL, TURN, TUNE]
RECIPE = Recipe(
    format=1, hotlap="0.1.0", command=("python", 'a "quoted"\nname'), evidence=RecipeEvidence(speedup=1.3, pairs=3),
    lever=(RecipeLever(name="loader-workers", settings={"workers": 2, "pin_memory": False}, risk="numeric"),),
    environment={"cores": 2, "cpu": "x"},
)  # fmt: skip
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)


def structs(value: Any) -> Iterator[type]:
    """The types of all records in a record."""
    if isinstance(value, msgspec.Struct):
        yield type(value)
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from structs(item)


# round trips


def test_every_type_of_record_is_among_the_samples() -> None:
    found = {kind for record in [*RECORDS, RECIPE] for kind in structs(record)}
    every = {
        item
        for module in (run, diagnosis, tune, utilisation)
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, msgspec.Struct)
    }
    assert every == found


@each_record
def test_what_is_written_reads_back(tmp_path: Path, record: Any) -> None:
    path = tmp_path / "record.json"
    write_record(path, record)
    assert read_record(path, type(record)) == record
    assert path.read_bytes().endswith(b"}\n")


@each_record
def test_lines_read_back_in_order(tmp_path: Path, record: Any) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for _ in range(3)))
    assert list(read_lines(path, type(record))) == [record] * 3


def test_a_recipe_and_a_session_read_back(tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.toml", RECIPE)
    assert read_recipe(tmp_path / "recipe.toml") == read_recipe(tmp_path) == RECIPE
    session = Session(folder="/r", package="/p", steps=3, levers=(LeverUse("compile", {"mode": "x"}),), redraw=4)
    session.write(tmp_path / "session.json")
    assert Session.read(str(tmp_path / "session.json")) == session


def test_bytes_that_are_no_text_do_not_stop_a_record(tmp_path: Path) -> None:
    record = msgspec.structs.replace(RUN, command=("python", os.fsdecode(b"caf\xe9.py")), cwd=os.fsdecode(b"/\xff"))
    write_record(tmp_path / "run.json", record)
    read = read_record(tmp_path / "run.json", Run)
    assert read == msgspec.structs.replace(record, command=("python", "caf?.py"), cwd="/?")


# writing


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: what goes beyond is refused by the system. Python ignores the signal."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomic(path, b"old")
    with files_of_at_most(100), pytest.raises(RecordError, match=r"cannot write .*run\.json: .*[Ff]ile too large"):
        write_atomic(path, b"x" * 101)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    documents = [letter * 200_000 for letter in (b"a", b"b")]
    write_atomic(path, documents[0])
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        write_atomic(path, documents[turn % 2])
    done.set()
    reader.join()
    assert seen and seen <= set(documents)


@pytest.mark.parametrize("where", ["missing/run.json", "file/run.json", "folder"])
def test_what_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(RecordError, match=f"cannot write {tmp_path / where}: "):
        write_record(tmp_path / where, RUN)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_a_new_folder_is_never_one_with_something_in_it(tmp_path: Path) -> None:
    assert new_folder(tmp_path / "a" / "b").is_dir()
    assert new_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("mine")
    for taken in ("a", "file"):
        with pytest.raises(RecordError, match="exists; nothing is overwritten"):
            new_folder(tmp_path / taken)
    with pytest.raises(RecordError, match=r"file is no folder\. Give --out another"):
        new_folder(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


# reading what is broken

GOOD = msgspec.json.encode(STEP)
BROKEN_LINES = {
    "part": GOOD[:-9],
    "empty": b"",
    "null": b"null",
    "list": b"[1]",
    "deep": b"[" * 200_000,
    "bytes": b"\xff\xfe\x00",
    "nan": GOOD.replace(b'"wall_ms":8.0', b'"wall_ms":NaN'),
    "huge": GOOD.replace(b'"wall_ms":8.0', b'"wall_ms":1e999'),
    "sums that overflow": GOOD.replace(b'"data":1.0', b'"data":1e308'),
    "more rows than a float holds": GOOD.replace(b'"samples":64', b'"samples":' + b"9" * 400),
    "below zero": GOOD.replace(b'"wall_ms":8.0', b'"wall_ms":-8'),
    "type": GOOD.replace(b'"kind":"inference"', b'"kind":"sleep"'),
    "missing": b'{"step":1}',
    "too long": b'{"step":1,"time":"' + b"x" * (3 * MAX_LINE) + b'"}',
}


@pytest.mark.parametrize("line", BROKEN_LINES.values(), ids=BROKEN_LINES.keys())
def test_a_broken_line_is_passed_over_wherever_it_stands(tmp_path: Path, line: bytes) -> None:
    assert line != GOOD
    (tmp_path / "steps.jsonl").write_bytes(b"\n".join([line, GOOD, line, GOOD, line]))
    assert list(read_lines(tmp_path / "steps.jsonl", Step)) == [STEP, STEP]


def test_no_more_than_a_line_s_limit_is_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.jsonl"
    with path.open("wb") as file:
        file.truncate(64 * MAX_LINE)
    asked: list[int] = []

    class Decoder:
        def __init__(self, kind: type) -> None:
            pass

        def decode(self, line: bytes) -> None:
            asked.append(len(line))
            raise msgspec.DecodeError

    monkeypatch.setattr(msgspec.json, "Decoder", Decoder)
    assert list(read_lines(path, Step)) == []
    assert max(asked) == MAX_LINE


def test_lines_that_are_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").mkdir()
    with pytest.raises(RecordError, match=f"cannot read {tmp_path}/steps.jsonl: Is a directory"):
        list(read_lines(tmp_path / "steps.jsonl", Step))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"\xff", b"[" * 200_000, b'{"a":' * 100_000, b'{"version": NaN}', b"9" * 100_000],
    ids=["empty", "part", "null", "list", "bytes", "deep lists", "deep objects", "nan", "number"],
)
@each_record
def test_a_broken_document_is_named(tmp_path: Path, record: Any, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(RecordError, match=f"{tmp_path}/x.json is not a {type(record).__name__.lower()} record: "):
        read_record(tmp_path / "x.json", type(record))


def test_the_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(encode(RUN).replace(b'"cores": 8', b'"cores": "8"'))
    with pytest.raises(RecordError, match=r"run\.json is not a run record: Expected `int`, got `str` .*environment"):
        read_record(tmp_path / "run.json", Run)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(MAX_DOCUMENT + 1)
    with pytest.raises(RecordError, match=r"run\.json is 64 MiB; more than 64 MiB is not read"):
        read_record(tmp_path / "run.json", Run)
    with path.open("wb") as file:
        file.truncate(MAX_RECIPE + 1)
    with pytest.raises(RecipeError, match="more than 1 MiB is not read"):
        read_recipe(path)
    with pytest.raises(RecordError, match="/dev/zero has no end; more than 1 MiB is not read"):
        read_bytes(Path("/dev/zero"), MAX_RECIPE)


def test_words_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "error").write_bytes(b" \xff what \n" + b"x" * 1000)
    assert read_words(tmp_path / "error", 9) == "\N{REPLACEMENT CHARACTER} what"
    with pytest.raises(RecordError, match="cannot read"):
        read_words(tmp_path / "none")


# mutations

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**400, -1, 0])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, max_size=5), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be changed in a JSON value."""
    keys: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in keys for place in places(item, (*path, key)))]


def changed(value: Any, place: tuple[Any, ...], junk: Any, remove: bool) -> Any:
    """The value with junk, or nothing, at a place."""
    if not place:
        return junk
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if remove:
        del inner[place[-1]]
    else:
        inner[place[-1]] = junk
    return value


def damaged(data: st.DataObject, raw: bytes) -> bytes:
    """Bytes with a piece cut out, doubled or replaced."""
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 40)))
    return raw[:start] + data.draw(st.binary(max_size=8) | st.just(2 * raw[start:end])) + raw[end:]


mutating = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@mutating
@given(st.data())
def test_a_mutated_document_is_a_record_or_a_record_error(tmp_path: Path, data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(RECORDS))
    value = msgspec.to_builtins(record)
    value = json.loads(json.dumps(value))
    for _ in range(data.draw(st.integers(1, 3))):
        if found := places(value):
            value = changed(value, data.draw(st.sampled_from(found)), data.draw(JSON), data.draw(st.booleans()))
    raw = json.dumps(value).encode()
    if data.draw(st.booleans()):
        raw = damaged(data, raw)
    path = tmp_path / "x.json"
    path.write_bytes(raw)
    try:
        read = read_record(path, type(record))
    except RecordError as error:
        assert str(path) in str(error)
    else:
        assert isinstance(read, type(record))
        write_record(path, read)
        assert read_record(path, type(record)) == read
    path.write_bytes(raw)
    assert all(isinstance(line, type(record)) for line in read_lines(path, type(record)))


@mutating
@given(st.data())
def test_a_mutated_recipe_is_a_recipe_or_a_recipe_error(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "recipe.toml"
    write_recipe(path, RECIPE)
    path.write_bytes(damaged(data, path.read_bytes()))
    try:
        assert isinstance(read_recipe(path), Recipe)
    except RecipeError as error:
        assert str(path) in str(error)
