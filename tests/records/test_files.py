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
from samples import sample

from hotlap.records.diagnosis import Diagnosis
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
from hotlap.records.run import Facts, Phases, Problem, Run, Step
from hotlap.records.session import LeverUse, Session
from hotlap.records.tune import LeverLine, ProbeLine, Recipe, RecipeEvidence, RecipeLever, Trial, Tune, Turn
from made_runs import RUN

STEP = Step(step=3, time=1.79e9, wall_ms=8.0, phases=Phases(data=1.0), samples=64, kind="inference")
RECORDS = list(map(sample, (Run, Step, Facts, Problem, Diagnosis, LeverLine, ProbeLine, Trial, Turn, Tune)))
RECIPE = Recipe(
    format=1, hotlap="0.1.0", command=("python", 'a "quoted"\nname'), evidence=RecipeEvidence(speedup=1.3, pairs=3),
    lever=(RecipeLever(name="loader-workers", settings={"workers": 2, "pin_memory": False}, risk="numeric"),),
    environment={"cores": 2, "cpu": "x"},
)  # fmt: skip
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)


# round trips


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
        with pytest.raises(RecordError, match="exists and was not overwritten"):
            new_folder(tmp_path / taken)
    with pytest.raises(RecordError, match=r"file is not a folder\. Give --out another"):
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
