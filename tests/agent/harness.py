"""Runs small training scripts, bare and under hotlap, and hands back what they printed and what was recorded."""

import dataclasses
import difflib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotlap.diagnose.verdict import verdict
from hotlap.launch.command import INJECT
from hotlap.launch.environment import environment
from hotlap.launch.run import BackgroundRun
from hotlap.launch.supervise import Ended
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.files import read_record, write_record
from hotlap.records.phases import PHASES
from hotlap.records.run import Facts, Problem, Run, Step
from hotlap.runs.folder import RankFolder, RunFolder
from hotlap.runs.plan import RunPlan

SCRIPTS = Path(__file__).parent / "scripts"
WHOLE = ("afterwards.py", "children.py", "endings.py", "loop.py", "threads.py")
"""Scripts that also end as Python ends, in forks too: it takes its modules apart, which takes a quarter of a second."""
ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
LIMIT_S = 90.0
NO_KERNELS = """
import torch._inductor.compile_fx as inductor
from torch._dynamo.backends.debugging import aot_eager
inductor.compile_fx = lambda graph, inputs, **_: aot_eager(graph, inputs)
"""
"""torch.compile as it is but for what Inductor makes: the same graphs, with the same backward, run as they were
captured. For tests of what is compiled, and how often: kernels take a second a graph, and several where the compiler's
cache is empty, as in a fresh clone."""


def waited(command: BackgroundRun, limit_s: float) -> tuple[Run, Ended]:
    """Wait for it at most so long, and end what is left of it."""
    deadline = time.monotonic() + limit_s
    try:
        while not command.over() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        ended = command.end(timed_out=not command.over())
    return ended


@dataclasses.dataclass
class Ran:
    """A run of a script. code: exit code, or minus the signal that ended it."""

    code: int
    output: str
    folder: Path | None = None

    @property
    def losses(self) -> list[float]:
        """What the script printed as `loss <repr>`."""
        return [float(found) for found in re.findall(r"^loss (\S+)$", self.output, re.MULTILINE)]

    @property
    def ranks(self) -> list[RankFolder]:
        assert self.folder is not None
        return RunFolder(self.folder).ranks

    @property
    def steps(self) -> list[Step]:
        """The steps of rank 0; none where nothing trained."""
        return list(self.ranks[0].steps) if self.ranks else []

    @property
    def facts(self) -> Facts:
        """Of rank 0, or of the only process where nothing trained."""
        if not self.ranks:
            (seen,) = self.folder.glob("seen-*.json")
            return read_record(seen, Facts)
        facts = self.ranks[0].facts
        assert facts is not None
        return facts

    @property
    def problems(self) -> list[Problem]:
        return [problem for rank in self.ranks for problem in rank.problems]


def free_port() -> str:
    """A port that nothing listens on: other tests, and other suites, have ranks of their own at the same time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def recorded_losses(steps: Sequence[Step]) -> list[float | None]:
    """The losses of all backward calls, in order."""
    return [loss for step in steps for loss in (step.losses or (() if step.loss is None else (step.loss,)))]


def check_lines(folder: Path) -> None:
    """What holds for every line of every rank: numbered in order, phases sum to the wall time, nothing lost."""
    for rank in RunFolder(folder).ranks:
        path = rank.file(Step)
        lines = path.read_bytes().splitlines() if path.exists() else []
        steps = list(rank.steps)
        assert len(lines) == len(steps)
        assert [step.step for step in steps] == list(range(len(steps)))
        for step, raw in zip(steps, map(json.loads, lines), strict=True):
            assert step.gpu_ms is None
            if raw["phases"] is None:  # a step that was not looked at
                assert raw["loss"] is raw["samples"] is None
                continue
            assert tuple(raw["phases"]) == PHASES
            assert sum(raw["phases"].values()) == pytest.approx(step.wall_ms, abs=4e-4)
            assert all(value >= 0 for value in raw["phases"].values())


def check_clean(ran: Ran) -> None:
    """Nothing of hotlap's own went wrong."""
    assert ran.folder is not None
    assert not (ran.folder / "session.json.error").exists()
    assert not ran.problems, [(problem.where, problem.trace) for problem in ran.problems]


def without_log_lines(output: str) -> str:
    """torch's own log lines hold the time and the process. Python 3.11's tracker of semaphores warns in some runs with
    spawned workers of one that is already gone: bare ones too, 3 of 75 on a loaded machine."""
    output = re.sub(
        r"^.*/resource_tracker\.py:\d+: UserWarning: .*\n  warnings\.warn\(.*\n", "", output, flags=re.MULTILINE
    )
    return re.sub(r"^[EWIV]\d{4} .*\n", "", output, flags=re.MULTILINE)


BETWEEN = re.compile(
    r'^( *)File "[^"]*/(?:hotlap/agent/[^"]*|torch/nn/modules/module\.py)", line .*\n(?:\1  .*\n)*', re.MULTILINE
)
"""Frames of a traceback that are hotlap's, or torch's way from a call of a module to its forward, which it changes."""


def check_same(ran: Ran, bare: Ran) -> None:
    """The script ended and printed as it does without hotlap, but for frames between its own in a traceback."""
    ours, theirs = (BETWEEN.sub("", without_log_lines(one.output)) for one in (ran, bare))
    assert ours == theirs, "\n".join(difflib.unified_diff(theirs.splitlines(), ours.splitlines(), "without", "with"))
    assert ran.code == bare.code


class Runner:
    """Runs scripts. `bare` and `forked` fork a process that has torch; `under` is what `hotlap` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.bares: dict[Any, Ran] = {}
        self.zygote: subprocess.Popen[bytes] | None = None
        self.environment = environment(SCRIPTS)

    def new_folder(self) -> Path:
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        return folder

    def request(self, argv: Sequence[str], folder: Path, **settings: Any) -> RunPlan:
        cwd = settings.pop("cwd", SCRIPTS)
        return RunPlan(
            tuple(map(str, argv)),
            folder,
            self.environment,
            cwd=Path(cwd),
            variables={**ENV, **settings.pop("variables", {})},
            **settings,
        )

    def under(self, argv: Sequence[str], python: bool = True, **settings: Any) -> Ran:
        """Run a command as `hotlap run` and trials do, with its output in a file."""
        argv = [sys.executable, *argv] if python else argv
        folder = self.new_folder()
        run, ended = waited(BackgroundRun(self.request(argv, folder, **settings), least_free_gib=0.0), LIMIT_S)
        assert run.status != "timeout"
        code = ended.code if ended.code is not None else -(ended.signal or 0)
        return Ran(code, (folder / "output.txt").read_text(), folder)

    def in_child(self, argv: Sequence[str], variables: dict[str, str] | None = None, cwd: Path = SCRIPTS) -> Ran:
        """Run a command without hotlap, in a process of its own."""
        env = {**os.environ, **ENV, **(variables or {})}
        done = subprocess.run(
            [sys.executable, *argv], env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.decode())

    def bare(self, *argv: str, before: str = "") -> Ran:
        """Run a script without hotlap, once a session. `before` is run first."""
        if (argv, before) not in self.bares:
            self.bares[argv, before] = self.fork(argv, self.new_folder() / "output.txt", before=before)
        return self.bares[argv, before]

    def forked(self, *argv: str, fail_in: str | None = None, before: str = "", **settings: Any) -> Ran:
        """Run a script with the agent, woken in a fork. `before` is run first."""
        (ran,) = self.forked_at_once([argv], fail_in, before, **settings)
        return ran

    def forked_at_once(
        self, argvs: Sequence[Sequence[str]], fail_in: str | None = None, before: str = "", **settings: Any
    ) -> list[Ran]:
        """As `forked`, of several commands that run at the same time, each in a folder of its own."""
        folders = [self.new_folder() for _ in argvs]
        for argv, folder in zip(argvs, folders, strict=True):
            session = dataclasses.replace(self.request(argv, folder, **settings).session(), fail_in=fail_in)
            session.write(folder / "session.json")
        ended = self.forks([
            self.forking(argv, folder / "output.txt", str(folder / "session.json"), before)
            for argv, folder in zip(argvs, folders, strict=True)
        ])  # fmt: skip
        return [dataclasses.replace(ran, folder=folder) for ran, folder in zip(ended, folders, strict=True)]

    def judged(self, ran: Ran, *argv: str) -> Diagnosis:
        """The verdict of one that was forked, with the record that `hotlap run` leaves."""
        assert ran.folder is not None
        write_record(ran.folder / "run.json", self.request((sys.executable, *argv), ran.folder).record())
        return verdict(ran.folder)

    def untouched(self, *argv: str, before: str = "", ours: str = "", **settings: Any) -> Ran:
        """As `forked`, and all is well: the script did what it does without hotlap, of which nothing went wrong. `ours`
        is run after `before`, and not without hotlap."""
        ran = self.forked(*argv, before=before + ours, **settings)
        check_same(ran, self.bare(*argv, before=before))
        check_clean(ran)
        check_lines(ran.folder)
        return ran

    def fork(self, argv: Sequence[str], output: Path, session: str = "", before: str = "", cwd: Path = SCRIPTS) -> Ran:
        """Run a script in a fork of a process that has imported torch. session: a file that the agent is told of."""
        (ran,) = self.forks([self.forking(argv, output, session, before, cwd)])
        return ran

    @staticmethod
    def forking(
        argv: Sequence[str], output: Path, session: str = "", before: str = "", cwd: Path = SCRIPTS
    ) -> dict[str, Any]:
        """What the process with torch is asked for."""
        return {
            "argv": [str(SCRIPTS / argv[0]), *argv[1:]], "cwd": str(cwd), "env": ENV, "output": str(output),
            "session": session, "inject": str(INJECT), "before": before, "whole": argv[0] in WHOLE,
        }  # fmt: skip

    def forks(self, requests: list[dict[str, Any]]) -> list[Ran]:
        """Run these at once."""
        if self.zygote is None:
            self.zygote = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("zygote.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENV},
            )  # fmt: skip
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.write(json.dumps(requests).encode() + b"\n")
        self.zygote.stdin.flush()
        statuses = json.loads(self.zygote.stdout.readline())
        return [
            Ran(os.waitstatus_to_exitcode(status), Path(request["output"]).read_text())
            for status, request in zip(statuses, requests, strict=True)
        ]

    def close(self) -> None:
        if self.zygote is not None and self.zygote.stdin is not None:
            self.zygote.stdin.close()
            self.zygote.wait(10)
