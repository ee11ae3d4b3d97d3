"""Bad input through the real process boundary: a clear message, hotlap's own exit code, no traceback, nothing lost.

Where a command has started, its output and its exit code come first, whatever becomes of hotlap's records.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from forking import hotlap_forked

from hotlap.cli.tune import _resumed
from hotlap.records.errors import EXIT_CODES
from hotlap.records.run import Phases, RootFacts, Step
from made_runs import FACTS, folder_of

SCRIPTS = Path(__file__).parents[1] / "agent" / "scripts"
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300", "TERM": "dumb", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
HEAD = 'format = 1\nhotlap = "0.1.0"\n'
MANY = """[[lever]]
name = "loader-workers"
settings = {workers = 999, prefetch = 2, pin_memory = false, persistent = true}
"""
LOOP = """
import sys, torch
model = torch.nn.Linear(4, 1)
for step in range(int(sys.argv[1])):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
    print("step", step)
sys.exit(int(sys.argv[2]))
"""
"""Without an optimizer, the import of which takes as long as that of torch."""


class Ran(NamedTuple):
    """How hotlap ended. said: its stderr with single blanks."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return " ".join(self.stderr.split())


def start(words: Sequence[str | bytes], cwd: Path, limit: int | None = None) -> Ran:
    """Run any command. limit: bytes that a file may have, as on a disk that fills up."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

    done = subprocess.run(
        words, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL, preexec_fn=limited if limit else None,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def hotlap(*arguments: str | bytes, cwd: Path, limit: int | None = None) -> Ran:
    return start([sys.executable, "-m", "hotlap", *arguments], cwd, limit)


def check(ran: Ran, code: int, *says: str) -> None:
    """It ended with this code of hotlap's own, said all of this on stderr, and nothing on stdout."""
    assert ran.code == code, ran.stderr[-2000:]
    assert code in EXIT_CODES
    for words in says:
        assert words in ran.said
    assert "Traceback" not in ran.stderr
    assert re.search(r"^hotlap: \S", ran.stderr, re.MULTILINE)
    assert ran.stdout == ""


Case = tuple[Sequence[str], int, Sequence[str]]


def refusals(lines: Sequence[Sequence[str]], cwd: Path) -> list[Ran]:
    """How hotlap ends with these arguments, each in a process of its own."""
    ended = [hotlap_forked(words, cwd, ENVIRONMENT) for words in lines]
    return [Ran(done.returncode, done.stdout, done.stderr) for done in ended]


def show(*words: str, cwd: Path) -> Ran:
    """`hotlap show`."""
    return refusals([("show", *words)], cwd)[0]


def check_all(cases: Mapping[str, Case], cwd: Path) -> None:
    """Each case is refused, and what lies in the folder stays as it is."""

    def files() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_size, path.open("rb").read(10_000) if path.is_file() else b"")
            for path in sorted(cwd.rglob("*"))
        }

    before = files()
    found = refusals([words for words, _, _ in cases.values()], cwd)
    for (name, (_, code, says)), ran in zip(cases.items(), found, strict=True):
        print("case:", name)  # shown where it fails
        check(ran, code, *says)
    assert files() == before


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a file, a folder that is taken, and one that is empty."""
    (tmp_path / "plain.py").write_text("print(1)")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_usage(here: Path) -> None:
    cases: dict[str, Case] = {
        "nothing": ([], 125, ["Missing command", "hotlap --help"]),
        "no such command of hotlap's": (["runn", "true"], 125, ["No such command 'runn'", "hotlap --help"]),
        "no command": (["run"], 125, ["no command given. Example: hotlap run python"]),
        "unknown option": (["run", "--stepz", "3", "true"], 125, ["No such option: --stepz", "hotlap --help"]),
        "command not found": (["run", "no-such-program"], 127, ["no-such-program: command not found"]),
        "path not found": (["run", "./none/train"], 127, ["./none/train: command not found"]),
        "not executable": (
            ["run", "./plain.py"],
            126,
            ["./plain.py: not executable; did you mean `python ./plain.py`?"],
        ),
        "a folder": (["run", "./taken"], 126, ["./taken: is a folder"]),
        "no steps": (["run", "--steps", "0", "true"], 125, ["'--steps'", "greater than or equal to 1"]),
        "steps below zero": (["run", "--steps", "-4", "true"], 125, ["'--steps'"]),
        "steps in words": (["run", "--steps", "many", "true"], 125, ["'--steps'", "integer"]),
        "lenient alone": (["run", "--lenient", "true"], 125, ["--lenient goes with --recipe"]),
        "out exists": (
            ["run", "--out", "taken", "true"],
            125,
            ["taken exists and was not overwritten", "another folder"],
        ),
        "out is a file": (["run", "--out", "plain.py", "true"], 125, ["plain.py exists and was not overwritten"]),
        "out under a file": (["run", "--out", "plain.py/x", "true"], 125, ["plain.py/x: plain.py is not a folder"]),
        "out not writable": (["run", "--out", "/proc/x", "true"], 125, ["cannot make /proc/x: No such file"]),
    }
    check_all(cases, here)


def test_a_working_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone, out = tmp_path / "gone", tmp_path / "out"
    for words in (["run", "--out", str(out), "true"], ["tune", "--out", str(out), "true"], ["patch", "x.toml"]):
        gone.mkdir()
        deleted = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable, "-m", "hotlap"]
        ran = start([*deleted, *words], gone)
        check(ran, 125, "the working folder is gone", "cd")
    assert not out.exists()


def test_recipes(here: Path) -> None:
    recipes = {
        "words.toml": "make it fast",
        "format.toml": 'format = 7\nhotlap = "3.0"',
        "lever.toml": HEAD + '[[lever]]\nname = "warp"',
        "module.toml": HEAD + '[[lever]]\nname = "hotlap.levers.tf32"',
        "types.toml": HEAD + "lever = 3",
        "settings.toml": HEAD + '[[lever]]\nname = "checkpoint-blocks"\nsettings = {every = 1, nice = 2}',
        "machine.toml": HEAD + MANY,
        "deep.toml": HEAD + "x = " + "[" * 100_000,
        "number.toml": HEAD + "x = " + "9" * 5000,
        "escape.toml": HEAD + '[[lever]]\nname = "\\u001b]0;owned\\u0007\\u001b[2J"',
    }
    for name, text in recipes.items():
        (here / name).write_text(text)
    with (here / "sparse.toml").open("wb") as file:
        file.truncate(1 << 30)
    says = {
        "none.toml": ["cannot read none.toml: No such file"],
        "taken": ["taken holds no recipe.toml: `hotlap tune` writes one"],
        "words.toml": ["words.toml is not valid TOML"],
        "format.toml": ["of format 7 (written by hotlap 3.0)", "reads format 1. Run `hotlap tune` again"],
        "lever.toml": ["warp: this hotlap", "no such lever; it has accumulate", "--lenient"],
        "module.toml": ["hotlap.levers.tf32: this hotlap", "no such lever"],
        "types.toml": ["types.toml: Expected `array`, got `int` - at `$.lever`"],
        "settings.toml": ["checkpoint-blocks: unknown setting 'nice'"],
        "machine.toml": ["loader-workers: 999 workers on", "`--lenient` leaves such levers out"],
        "deep.toml": ["deep.toml is not valid TOML"],
        "number.toml": ["number.toml is not valid TOML"],
        "escape.toml": ["]0;owned[2J: this hotlap"],
        "sparse.toml": ["sparse.toml is 1024 MiB; more than 1 MiB is not read"],
        "/dev/zero": ["/dev/zero has no end; more than 1 MiB is not read"],
    }
    check_all({name: (["run", "--recipe", name, "true"], 125, words) for name, words in says.items()}, here)


def test_tune_options(here: Path) -> None:
    (here / "asked").mkdir()
    (here / "asked" / "request.json").write_text('{"command": ["python", "train.py"], "cwd": "/"}')
    (here / "broken").mkdir()
    (here / "broken" / "request.json").write_text('{"command": ["true"], "cwd": "/", "budget_s": null}')

    def refused(*options: str) -> list[str]:
        return ["tune", *options, "true"]

    cases: dict[str, Case] = {
        "no command": (["tune"], 125, ["no command given"]),
        "command not found": (["tune", "no-such-program"], 127, ["no-such-program: command not found"]),
        "unknown option": (refused("--fast"), 125, ["No such option: --fast"]),
        "budget in words": (refused("--budget", "soon"), 125, ["--budget 'soon' is not a time; write 90s, 10m or 1h"]),
        "budget of nothing": (refused("--budget", "0m"), 125, ["--budget '0m' is not a time"]),
        "budget below zero": (refused("--budget", "-5"), 125, ["--budget '-5' is not a time"]),
        "budget without end": (refused("--budget", "9" * 400), 125, ["is not a time"]),
        "no steps": (refused("--steps", "0"), 125, ["'--steps'", "greater than or equal to 12"]),
        "only": (refused("--only", "compile,warp"), 125, ["no lever 'warp'; the levers are accumulate"]),
        "without": (refused("--without", "warp"), 125, ["no lever 'warp'; the levers are"]),
        "allow": (refused("--allow", "everything"), 125, ["--allow takes only 'semantic', not everything"]),
        "out exists": (refused("--out", "taken"), 125, ["taken exists and was not overwritten"]),
        "resume and another command": (
            ["tune", "--resume", "asked", "python", "x.py"],
            125,
            ["asked belongs to another command: python train.py"],
        ),
        "resume what nobody confirmed": (["tune", "--resume", "asked"], 125, ["python train.py", "--yes"]),
        "resume in another folder": (
            ["tune", "--resume", "asked", "python", "train.py"],
            125,
            ["asked holds this command, to run in /: python train.py", "not confirmed; go to /, or give --yes"],
        ),
        "resume nothing": (["tune", "--resume", "none"], 125, ["none holds no request.json", "folder of a tune"]),
        "resume what is no tune": (["tune", "--resume", "taken"], 125, ["taken holds no request.json"]),
        "resume what is broken": (["tune", "--resume", "broken"], 125, ["request.json is not a", "`$.budget_s`"]),
    }
    check_all(cases, here)


def test_a_command_that_tune_could_not_keep_as_text(here: Path) -> None:
    check(hotlap("tune", "--out", "t", "true", b"\xff", cwd=here), 125, "is not valid UTF-8")
    assert not (here / "t").exists()


# show


STEP = Step(step=0, time=1.0, wall_ms=10.0, phases=Phases(forward=4.0, backward=6.0))


def run_folder(folder: Path, steps: int = 20, **facts: Any) -> Path:
    """A finished run, made by hand."""
    numbered = [msgspec.structs.replace(STEP, step=at) for at in range(steps)]
    return folder_of(folder, (numbered, msgspec.structs.replace(FACTS, **facts)))


def test_show_of_what_is_no_run(here: Path) -> None:
    for name in ("part", "types", "deep", "large", "facts", "few", "silent"):
        run_folder(here / name, steps=2 if name == "few" else 20)
    (here / "part" / "run.json").write_text('{"command": ["python"')
    (here / "types" / "run.json").write_text(
        (here / "types" / "run.json").read_text().replace('"cores": 8', '"cores": []')
    )
    (here / "deep" / "run.json").write_text("[" * 200_000)
    (here / "facts" / "rank-0" / "facts.json").write_text('{"pid": "one"}')
    shutil.rmtree(here / "silent" / "rank-0")
    (here / "silent" / "session.json.error").write_bytes(b"ImportError: \xff\xfe no torch")
    with (here / "large" / "run.json").open("wb") as file:
        file.truncate(100 << 20)
    (here / "tuned").mkdir()
    (here / "tuned" / "tune.json").write_text('{"command": 3}')
    cases: dict[str, Case] = {
        "no folder given": (["show"], 125, ["Missing argument 'folder'"]),
        "missing": (["show", "none"], 125, ["none is not a folder; give the folder of a run"]),
        "a file": (["show", "plain.py"], 125, ["plain.py is not a folder; give the folder of a run"]),
        "no run": (["show", "taken"], 125, ["taken holds no run.json; give the folder of a run"]),
        "part": (["show", "part"], 125, ["part/run.json is not a run record: Input data was truncated"]),
        "types": (["show", "types"], 125, ["types/run.json", "Expected `int`, got `array` - at `$.environment.cores`"]),
        "deep": (["show", "deep"], 125, ["deep/run.json is not a run record"]),
        "large": (["show", "large"], 125, ["large/run.json is 100 MiB; more than 64 MiB is not read"]),
        "facts": (["show", "facts"], 125, ["facts/rank-0/facts.json", "Expected `int`, got `str` - at `$.pid`"]),
        "a broken tune": (["show", "tuned"], 125, ["tuned/tune.json is not a tune record"]),
    }
    check_all(cases, here)
    for name, why in (("few", "only 2 steps were seen"), ("silent", "agent could not start: ImportError: \ufffd")):
        ran = show(name, cwd=here)
        assert (ran.code, ran.stderr) == (122, "")
        assert f"no verdict: {why}" in ran.stdout or why in ran.stdout


def test_show_of_a_damaged_run_shows_what_is_whole(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r")
    lines = (run / "rank-0" / "steps.jsonl").read_bytes()
    hostile = b"".join(
        json.dumps({**msgspec.to_builtins(STEP), **junk}).encode() + b"\n"
        for junk in ({"wall_ms": 0}, {"wall_ms": 1e308})
    )
    (run / "rank-0" / "steps.jsonl").write_bytes(hostile + lines + b"\xff\n[[[[\n" + lines[:50])
    (run / "rank-²").mkdir()
    ran = show("--json", "r", cwd=tmp_path)
    assert (ran.code, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)["diagnosis"]
    assert (found["steps"], found["step_ms"], found["bound"]) == (20, 10.0, "compute")


def test_text_from_outside_steers_no_terminal(tmp_path: Path) -> None:
    bad = "\x1b[31mred\x1b]0;owned\x07\x9b2J\u202e[bold]"
    root = RootFacts(name=bad, parameters=9, modules=1, dtypes=(bad,), file=bad, line=3)
    run = run_folder(tmp_path / "r", roots=(root,), device_name=bad)
    document = json.loads((run / "run.json").read_text())
    document.update(command=["python", bad], levers=[{"name": bad, "settings": {}}], recipe=bad, cwd=bad)
    (run / "run.json").write_text(json.dumps(document))
    (run / "rank-0" / "problems.jsonl").write_text(json.dumps({"where": bad, "what": bad}) + "\n")
    shown = show("r", cwd=tmp_path)
    assert shown.code == 0
    shutil.rmtree(run / "rank-0")
    nothing = show("r", cwd=tmp_path)
    assert nothing.code == 122
    for ran in (shown, nothing):
        assert "[31mred" in ran.stdout and "[bold]" in ran.stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ran.stdout + ran.stderr)


# resume


@pytest.mark.parametrize(("asked", "seconds"), [(None, 42.0), ("2m", 120.0)])
def test_a_resumed_tune_has_its_old_budget_or_the_one_asked_for(
    tmp_path: Path, asked: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "request.json").write_text(json.dumps({"command": ["true"], "cwd": str(tmp_path), "budget_s": 42}))
    assert _resumed(tmp_path, ["true"], asked, yes=False).budget_s == seconds


def tune_folder(folder: Path, command: Sequence[str], cwd: Path) -> Path:
    """A tune that was interrupted before its first trial."""
    (folder / "trials").mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"command": command, "cwd": str(cwd)}))
    return folder


def test_resume_passes_over_broken_lines_and_keeps_the_journal(tmp_path: Path) -> None:
    folder = tune_folder(tmp_path / "t", ["sh", "-c", "exit 5"], tmp_path)
    (folder / "trials" / "000").mkdir()
    trial = {
        "id": 0,
        "purpose": "baseline",
        "levers": [],
        "folder": "trials/000",
        "outcome": "crashed",
        "why": "as it was then",
    }
    journal = '{"id": 0, "purp\n' + json.dumps(trial) + "\n\x00\n" + json.dumps(trial)[:40]
    (folder / "trials.jsonl").write_text(journal)
    check(hotlap("tune", "--resume", "t", "--yes", cwd=tmp_path), 123, "the command itself fails", "exit code 5")
    kept = (folder / "trials.jsonl").read_text()
    assert kept.startswith(journal)
    assert [json.loads(line)["id"] for line in kept[len(journal) :].splitlines() if line] == [1, 2], "it starts twice"


def test_resume_from_elsewhere_starts_a_program_that_lies_beside_the_script(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train").write_text("#!/bin/sh\necho said so; exit 5\n")
    (work / "train").chmod(0o755)
    tune_folder(tmp_path / "t", ["./train"], work)
    check(hotlap("tune", "--resume", "t", "--yes", cwd=tmp_path), 123, "exit code 5: said so")


# the command's own end comes first


def test_what_the_kernel_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x00\x01")
    (tmp_path / "program").chmod(0o755)
    check(hotlap("run", "--out", "r", "./program", cwd=tmp_path), 126, "./program: Exec format error")


def test_the_end_of_a_command_is_its_own(tmp_path: Path) -> None:
    shell = ["run", "--json", "--out", "r", "sh", "-c"]
    gone = hotlap(*shell, "rm -r r; echo out; exit 7", cwd=tmp_path)
    out, document = gone.stdout.splitlines()
    assert (gone.code, out, json.loads(document)["run"]["exit_code"]) == (7, "out", 7)
    assert "hotlap: cannot write r/run.json: No such file" in gone.said and "Traceback" not in gone.stderr
    killed = hotlap(*shell, "kill -9 $$", cwd=tmp_path)
    assert killed.code == -signal.SIGKILL
    assert json.loads((tmp_path / "r" / "run.json").read_text())["signal"] == signal.SIGKILL
    line = '"$0" -m hotlap run sh -c "exit 3" 2>/dev/full'
    assert start(["sh", "-c", line, sys.executable], tmp_path).code == 3
    assert start(["sh", "-c", line.replace("sh -c", "no-such-program"), sys.executable], tmp_path).code == 127


def test_lenient_skips_what_does_not_fit_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(HEAD + MANY)
    ran = hotlap("run", "--lenient", "--recipe", "r.toml", "--out", "r", "sh", "-c", "exit 4", cwd=tmp_path)
    assert ran.code == 4
    assert "hotlap: left out of the recipe: loader-workers: 999 workers on" in ran.said
    assert json.loads((tmp_path / "r" / "run.json").read_text())["levers"] == []


def test_a_crash_in_a_step_is_shown_with_the_script_s_own_traceback(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "by_hand.py"), "model", "12", "9:error"]
    ran = hotlap("run", "--json", "--steps", "500", "--out", "r", *script, cwd=tmp_path)
    assert ran.code == 1
    traceback, screen = ran.stderr.split("ValueError: the user's own error\n")
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert script[1] in re.findall(r'File "(.*)", line', traceback)
    assert "exit code 1" in screen and "Traceback" not in screen
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["run"]["status"], found["run"]["exit_code"]) == ("failed", 1)
    assert screen.lstrip().startswith("the command failed after ") and "fix the command's own error" in screen
    assert found["run"]["options"] == ["--steps", "500"]
    assert (found["diagnosis"]["steps"], found["diagnosis"]["settled"]) == (10, False)
    assert "the step time was still changing" in " ".join(found["diagnosis"]["unknown"])


def test_a_command_that_imports_torch_and_never_trains(tmp_path: Path) -> None:
    ran = hotlap("run", "--out", "r", sys.executable, str(SCRIPTS / "nothing.py"), cwd=tmp_path)
    assert (ran.code, ran.stdout) == (0, "2.0\n")
    shown = show("r", cwd=tmp_path)
    assert shown.code == 122
    for words in (ran.said, " ".join(shown.stdout.split())):
        assert "no training step was seen" in words and "0 optimizer steps" in words
        assert "A step is one optimizer step" in words


def test_fewer_steps_than_needed_with_an_argument_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    ran = hotlap("run", "--json", "--out", "r", sys.executable, "loop.py", "2", "6", b"caf\xe9", cwd=tmp_path)
    assert ran.code == 6
    assert "no verdict: only 2 steps were seen before the command ended; at least 3 are needed" in ran.said
    document = json.loads(ran.stdout.splitlines()[-1])
    assert document["diagnosis"] is None and document["run"]["command"][-1] == "caf?"
    assert json.loads((tmp_path / "r" / "rank-0" / "facts.json").read_text())["argv"][-1] == "caf?"
    assert show("r", cwd=tmp_path).code == 122


def test_tune_of_a_command_that_ends_before_it_is_steady(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    ran = hotlap("tune", "--out", "t", sys.executable, "loop.py", "6", "0", cwd=tmp_path)
    check(ran, 122, "steady steps of 6", "t/trials/000/output.txt")
    assert not (tmp_path / "t" / "recipe.toml").exists()


STEPS = 60
PRINTED = "".join(f"step {step}\n" for step in range(STEPS))


def test_a_job_outlives_files_that_may_not_grow(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    ran = hotlap("run", "--out", "r", sys.executable, "loop.py", str(STEPS), "3", cwd=tmp_path, limit=4096)
    assert (ran.code, ran.stdout) == (3, PRINTED)
    assert "Traceback" not in ran.stderr
    assert (tmp_path / "r" / "rank-0" / "steps.jsonl").stat().st_size == 4096
    assert "File too large" in (tmp_path / "r" / "rank-0" / "problems.jsonl").read_text()
    assert "of hotlap's own" in ran.said


def test_a_job_outlives_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "disk").mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8k none "$0" && exec "$@"', "disk"]
    if shutil.which("unshare") is None or start([*mounted, "true"], tmp_path).code:
        pytest.skip("no small disk can be mounted here")
    command = [sys.executable, "-m", "hotlap", "run", "--out", "disk/r", sys.executable, "loop.py", str(STEPS), "3"]
    ran = start([*mounted, *command], tmp_path)
    assert (ran.code, ran.stdout) == (3, PRINTED)
    assert "hotlap: cannot write disk/r/run.json: No space left on device" in ran.said
    assert "Traceback" not in ran.stderr
