"""A suite file is read strictly, and its commands in turn."""

from pathlib import Path

import pytest

from hotlap.guard.suite import Turns, chosen, read_suite
from hotlap.launch.supervise import Ended
from hotlap.records.errors import RecordError, UsageError
from hotlap.records.run import Run, Step
from hotlap.records.suite import Suite
from hotlap.runs.folder import RunFolder, TuneFolder
from hotlap.runs.plan import RunPlan
from made_runs import FACTS, write_rank


def suite(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


GOOD = """
steps = 20
timeout = 30
[one]
command = "python 'my train.py' --lr 3e-4"
cwd = "part"
[two]
command = ["python", "b.py"]
steps = 60
repeat = 3
variables = {OMP_NUM_THREADS = "2"}
recipe = "../fast.toml"
"""


def test_each_table_is_a_command_and_values_on_top_are_defaults(tmp_path: Path) -> None:
    one, two = read_suite(suite(tmp_path, GOOD))
    assert (one.name, one.words) == ("one", ("python", "my train.py", "--lr", "3e-4"))
    assert (one.cwd, one.recipe) == (tmp_path / "part", None)
    assert (one.given.steps, one.given.repeat, one.given.timeout) == (20, 1, 30.0)
    assert (two.words, two.cwd, two.recipe) == (("python", "b.py"), tmp_path, tmp_path / "../fast.toml")
    assert (two.given.steps, two.given.repeat, two.given.variables) == (60, 3, {"OMP_NUM_THREADS": "2"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no command"),
        ("[a", "not valid TOML"),
        ("[a]\nsteps = 9", "[a]: Object missing required field `command`"),
        ('[a]\ncommand = "x"\nstep = 9', "[a]: Object contains unknown field `step`"),
        ('[a]\ncommand = "x"\nsteps = "9"', "`$.steps`"),
        ('[a]\ncommand = "x"\nsteps = 4', "`int` >= 5 - at `$.steps`"),
        ('[a]\ncommand = "x"\nrepeat = 101', "`$.repeat`"),
        ('[a]\ncommand = "x"\ntimeout = inf', "`$.timeout`"),
        ('[a]\ncommand = "x"\ntimeout = nan', "`$.timeout`"),
        ('[a]\ncommand = "x"\nvariables = {A = 1}', "`$.variables[...]`"),
        ('[a]\ncommand = "x"\nvariables = {"A B" = "1"}', "`$.variables`"),
        ('[a]\ncommand = "x \'y"', "[a]: command: No closing quotation"),
        ('[a]\ncommand = " "', "command: it is empty"),
        ("[a]\ncommand = []", "`$.command`"),
        ('[a]\ncommand = ["x\\u0000"]', "zero byte"),
        ('["../a"]\ncommand = "x"', "is no name for a command"),
        ('[".."]\ncommand = "x"', "is no name for a command"),
        ('stesp = 9\n[a]\ncommand = "x"', "'stesp' on top is no default"),
        ('command = "x"\n[a]\ncommand = "x"', "'command' on top is no default"),
        ("\n".join(f'[a{n}]\ncommand = "x"' for n in range(201)), "200 at most"),
        (f"a = {'[' * 5000}", "not valid TOML"),
        ('[a]\ncommand = "' + "x" * (1 << 20) + '"', "MiB"),
    ],
)
def test_what_is_wrong_is_named_with_the_file_and_the_field(tmp_path: Path, text: str, said: str) -> None:
    path = suite(tmp_path, text)
    with pytest.raises(RecordError) as error:
        read_suite(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_some_of_the_commands_are_chosen_in_the_order_of_the_file(tmp_path: Path) -> None:
    entries = read_suite(suite(tmp_path, GOOD))
    assert [one.name for one in chosen(entries, ["two", "one"])] == ["one", "two"]
    assert [one.name for one in chosen(entries, ["two"])] == ["two"]
    assert chosen(entries, []) == entries
    with pytest.raises(UsageError, match="no three; it has one, two"):
        chosen(entries, ["three"])


class Quiet:
    def trial(self, purpose: str, levers: str) -> None: ...

    def step(self, done: int, of: int | None = None) -> None: ...

    def result(self, text: str) -> None: ...


TIMES = {"a": [10.0, 12.0, 11.0], "b": [20.0], "c": [5.0, 5.0, 5.0]}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of runs in the order in which they were made, each as `TIMES` says; the second of `c` fails."""
    made: list[str] = []

    def run_alone(plan: RunPlan, *rest: object) -> Ended:
        name, _, number = plan.folder.name.partition("-")
        made.append(plan.folder.name)
        run = plan.record()
        RunFolder(plan.folder).write(run)
        if (name, number) == ("c", "2"):
            RunFolder(plan.folder).output.write_text("Traceback\n  File\nValueError: no data\n")
            return Ended(code=1, signal=None)
        took = TIMES[name][int(number) - 1]
        steps = [
            Step(step=n, time=run.started + 4 + n * took / 1000, wall_ms=took, phases=None, samples=8)
            for n in range(1, 60)
        ]
        write_rank(plan.folder / "rank-0", steps, FACTS)
        return Ended(code=0, signal=None)

    monkeypatch.setattr("hotlap.guard.suite.run_alone", run_alone)
    monkeypatch.setattr("hotlap.guard.suite.find_program", lambda words, cwd: words[0])
    return made


def test_starts_take_turns_and_numbers_are_over_them(tmp_path: Path, starts: list[str]) -> None:
    text = '[a]\ncommand = "x"\nrepeat = 3\n[b]\ncommand = "x"\n[c]\ncommand = "x"\nrepeat = 3'
    path = suite(tmp_path, text)
    told: list[Suite] = []
    found = Turns(path, read_suite(path), tmp_path / "out", Quiet(), told=told.append).run()
    assert starts == ["a-1", "b-1", "c-1", "a-2", "c-2", "a-3"]  # c is not started again after it failed
    a, b, c = found.rows
    assert a.step_ms is not None and (a.step_ms.median, a.step_ms.low, a.step_ms.high) == (11.0, 10.0, 12.0)
    assert a.startup_s is not None and a.startup_s.median == pytest.approx(4.0, abs=0.01)
    assert a.outcome == b.outcome == "measured" and c.outcome == "crashed" and "ValueError: no data" in c.why
    assert c.step_ms is not None and c.step_ms.median == 5.0 and [one.outcome for one in c.starts][-1] == "crashed"
    assert found.complete and found.failed == (c,)
    assert TuneFolder(tmp_path / "out").bench == found == told[-1]
    assert [[one.outcome for one in suite.rows] for suite in told[:2]] == [
        ["not run", "not run", "not run"], ["measured", "not run", "not run"],
    ]  # fmt: skip
    assert not told[1].complete
    assert RunFolder(tmp_path / "out" / "a-1").document(Run) is not None


def test_repeat_of_the_command_line_takes_the_place_of_the_file_s(tmp_path: Path, starts: list[str]) -> None:
    path = suite(tmp_path, '[a]\ncommand = "x"\nrepeat = 3\n')
    Turns(path, read_suite(path), tmp_path / "out", Quiet(), repeat=1).run()
    assert starts == ["a-1"]
