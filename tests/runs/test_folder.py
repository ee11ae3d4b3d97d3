"""The folder of a run: what is there is read, what is missing is not what is broken, and a live run is followed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hotlap
from hotlap.records.errors import RecordError
from hotlap.records.profile import Lines, Profile, Samples
from hotlap.records.profilers import Capture
from hotlap.records.run import Facts, Phases, Problem, Run, Step
from hotlap.records.telemetry import TelemetrySample
from hotlap.records.tune import LeverLine, ProbeLine, Tune
from hotlap.runs.folder import FILES, RankFolder, RunFolder, TuneFolder
from report.pages import DIAGNOSIS, FACTS, RUN, RUN_PAGE, TUNE

STEP = Step(step=0, time=1.0, wall_ms=8.0, phases=Phases(forward=8.0), loss=0.5)
PROBLEM = Problem(where="loader", what="boom")
LINE = LeverLine(lever="compile")
PROBE = ProbeLine(what="batch")


def lines(path: Path, *records: msgspec.Struct) -> None:
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two ranks, of which the second died early."""
    for name in ("rank-10", "rank-9", "rank-²", "rank-x", "rank-"):
        (tmp_path / name).mkdir()
    run = RunFolder(tmp_path)
    run.write(RUN)
    nine = run.rank(9)
    nine.write(FACTS)
    lines(nine.file(Step), STEP)
    lines(nine.file(Problem), PROBLEM)
    lines(nine.file(LeverLine), LINE)
    lines(nine.file(ProbeLine), PROBE)
    return run


# what is there


def test_a_run_reads_back(run: RunFolder) -> None:
    nine, ten = run.ranks
    assert (nine.number, ten.number) == (9, 10)
    assert run.is_run and run.record == RUN and run.facts == nine.facts == FACTS
    assert (list(nine.steps), nine.problems, nine.levers, nine.lines(ProbeLine)) == ([STEP], [PROBLEM], [LINE], [PROBE])
    assert run.problems == [PROBLEM]
    assert run.observed == [nine]
    run.write(DIAGNOSIS)
    lines(run.file(TelemetrySample), RUN_PAGE.telemetry[0])
    assert (run.diagnosis, run.telemetry) == (DIAGNOSIS, [RUN_PAGE.telemetry[0]])


def test_what_a_profile_left_reads_back(run: RunFolder) -> None:
    rank = run.rank(9)
    left = (Profile(file="trace.json.gz"), Samples(), Lines(), Capture(tool="nsys"))
    for record in left:
        rank.write(record)
    assert tuple(map(rank.document, map(type, left))) == left


def test_what_is_missing_is_none(run: RunFolder) -> None:
    for rank in (run.rank(10), run.rank(3)):
        assert [rank.facts, *map(rank.document, DOCUMENTS)] == [None] * 6
        assert [list(rank.steps), rank.problems, rank.levers, rank.lines(ProbeLine)] == [[]] * 4
        assert rank.new_steps(0) == ([], 0)
    assert (run.diagnosis, run.telemetry, run.traces, run.seen, run.agent_error) == (None, [], [], [], None)
    assert run.output_tail(3) == []


def test_without_ranks_there_are_no_facts(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert (run.ranks, run.observed, run.facts, run.problems, run.is_run) == ([], [], None, [], False)


def test_ranks_that_were_restarted_are_those_of_the_last_start_that_left_some(run: RunFolder) -> None:
    run.rank(10).trace.touch()
    for name in ("start-2/rank-1", "start-10/rank-0", "start-11", "start-x/rank-7"):
        (run.path / name).mkdir(parents=True)
    assert (run.restarts, [rank.path for rank in run.ranks]) == (10, [run.path / "start-10" / "rank-0"])
    assert (run.rank(3).path, run.start, run.traces) == (run.path / "start-10" / "rank-3", run.path / "start-10", [])


def test_a_long_run_left_its_first_and_its_last_steps(run: RunFolder) -> None:
    rank = run.rank(9)
    for number, name in ((7, "steps-last.jsonl"), (6, "steps-before.jsonl")):
        lines(rank.path / name, msgspec.structs.replace(STEP, step=number))
    assert [step.step for step in rank.steps] == [0, 6, 7]


def test_steps_are_streamed(run: RunFolder) -> None:
    steps = run.rank(9).steps
    assert next(steps) == STEP
    assert next(steps, None) is None


def test_traces_are_those_of_ranks_or_what_nsys_recorded(run: RunFolder) -> None:
    (run.path / "nsys.sqlite").touch()
    assert run.traces == [run.path / "nsys.sqlite"]
    run.rank(10).trace.touch()
    assert run.traces == [run.path / "rank-10" / "trace.json.gz"]


def test_what_a_command_printed_and_why_the_agent_did_not_start(run: RunFolder) -> None:
    run.output.write_bytes(b"x" * 70_000 + b"\nfirst\n\xff second\n")
    assert run.output_tail(2) == ["first", "\N{REPLACEMENT CHARACTER} second"]
    assert sum(map(len, run.output_tail(9))) < 1 << 16
    (run.path / "session.json.error").write_text("no torch here\n")
    assert run.agent_error == "no torch here"


def test_a_text_is_read_without_empty_lines(run: RunFolder) -> None:
    (run.path / "said.txt").write_bytes(b" one \n\n\xff two\nthree")
    assert run.text("said.txt") == ["one", "\N{REPLACEMENT CHARACTER} two", "three"]
    assert run.text("said.txt", limit=5) == ["one"]
    assert run.text("absent.txt") == run.text("rank-9") == []


def test_a_tune_has_a_result_and_the_runs_of_its_trials(tmp_path: Path) -> None:
    tune = TuneFolder(tmp_path)
    assert tune.tune is None
    tune.write(TUNE)
    assert tune.tune == TUNE
    assert tune.trial(TUNE.trials[0]) == RunFolder(tmp_path / TUNE.trials[0].folder)


# what is broken

DOCUMENTS = [Facts, Profile, Lines, Samples, Capture]


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_a_broken_document_of_a_rank_is_named(tmp_path: Path, kind: type) -> None:
    (tmp_path / FILES[kind]).write_bytes(b"{torn")
    with pytest.raises(RecordError, match=f"{tmp_path}/{FILES[kind]} is not a {kind.__name__.lower()} record: "):
        RankFolder(tmp_path).document(kind)


def test_broken_facts_name_the_field(run: RunFolder) -> None:
    path = run.rank(9).file(Facts)
    path.write_bytes(msgspec.json.encode(FACTS).replace(b'"pid":', b'"pid":"x","was":'))
    for rank in (run.rank(9), run):
        with pytest.raises(RecordError, match=r"rank-9/facts\.json is not a facts record: .*`\$\.pid`"):
            _ = rank.facts


def test_a_broken_document_is_read_again_when_it_was_replaced(run: RunFolder) -> None:
    run.file(Run).write_bytes(b"{torn")
    with pytest.raises(RecordError, match=r"run\.json is not a run record"):
        _ = run.record
    run.write(RUN)
    assert run.record == RUN


@pytest.mark.parametrize("of", ["steps", "problems", "levers"])
def test_broken_lines_are_passed_over(run: RunFolder, of: str) -> None:
    rank, kind = run.rank(9), {"steps": Step, "problems": Problem, "levers": LeverLine}[of]
    rank.file(kind).write_bytes(b"{torn\n" + rank.file(kind).read_bytes() + b"null")
    assert len(list(getattr(rank, of))) == 1


@pytest.mark.parametrize("of", ["steps", "problems", "levers"])
def test_lines_that_are_a_folder_are_refused(tmp_path: Path, of: str) -> None:
    for kind in (Step, Problem, LeverLine):
        (tmp_path / FILES[kind]).mkdir()
    with pytest.raises(RecordError, match=f"cannot read {tmp_path}/.*jsonl: Is a directory"):
        list(getattr(RankFolder(tmp_path), of))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_in_place_of_a_document_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "facts.json")
    assert RankFolder(tmp_path).facts is None


# a run that goes on


def test_lines_of_a_live_run_are_read_anew(run: RunFolder) -> None:
    rank = run.rank(9)
    assert (len(rank.problems), len(rank.levers), len(list(rank.steps)), len(run.problems)) == (1, 1, 1, 1)
    lines(rank.file(Problem), PROBLEM)
    lines(rank.file(LeverLine), LINE)
    lines(rank.file(Step), STEP)
    assert (len(rank.problems), len(rank.levers), len(list(rank.steps)), len(run.problems)) == (2, 2, 2, 2)


def test_ranks_that_come_later_are_seen(run: RunFolder) -> None:
    assert len(run.ranks) == 2
    run.rank(11).path.mkdir()
    assert [rank.number for rank in run.ranks] == [9, 10, 11]


def test_a_document_is_read_once_until_it_is_replaced(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, read = run.rank(9), []
    decode = msgspec.json.decode

    def counted(data: bytes, **more: Any) -> Any:
        read.append(len(data))
        return decode(data, **more)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    assert rank.facts is rank.facts and len(read) == 1
    changed = msgspec.structs.replace(FACTS, pid=FACTS.pid + 1)
    rank.write(changed)
    assert rank.facts == changed and len(read) == 2


def test_new_steps_are_whole_lines_only(run: RunFolder) -> None:
    path, rank = run.rank(9).file(Step), run.rank(9)
    found, at = rank.new_steps(0)
    assert [msgspec.json.decode(line, type=Step) for line in found] == [STEP]
    assert rank.new_steps(at) == ([], at)
    with path.open("ab") as file:
        file.write(b'{"step":1')
    assert rank.new_steps(at) == ([], at)
    with path.open("ab") as file:
        file.write(b"}\n\n{")
    assert rank.new_steps(at) == ([b'{"step":1}', b""], at + len(b'{"step":1}\n\n'))


# for users


def test_a_run_is_opened_by_a_name_or_a_path(run: RunFolder) -> None:
    for path in (run.path, str(run.path)):
        assert hotlap.open_run(path) == run
    assert hotlap.open_run(run.path).record.command == RUN.command


def test_what_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"{tmp_path} holds no run.json; give the folder of a run"):
        hotlap.open_run(tmp_path)
    for missing in ("absent", "file"):
        (tmp_path / "file").touch()
        with pytest.raises(RecordError, match=f"{tmp_path}/{missing} is not a folder; give the folder of a run"):
            hotlap.open_run(tmp_path / missing)
    TuneFolder(tmp_path).write(TUNE)
    with pytest.raises(RecordError, match=r"holds no run\.json"):
        hotlap.open_run(tmp_path)
    (tmp_path / FILES[Run]).write_text("{torn")
    with pytest.raises(RecordError, match="is not a run record"):
        hotlap.open_run(tmp_path)


def test_importing_hotlap_imports_nothing_else() -> None:
    asked = "import sys; before = set(sys.modules); import hotlap; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "['hotlap']\n"


def test_no_two_kinds_of_record_share_a_file() -> None:
    assert len(set(FILES.values())) == len(FILES)
    assert FILES[Tune] == "tune.json"
