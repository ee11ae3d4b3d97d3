"""What `py-spy record --subprocesses --threads --idle --full-filenames --format raw` wrote: stacks, and how often each
was seen. `process PID:"COMMAND";...;thread (TID): NAME;FUNCTION (FILE:LINE);... COUNT`, outermost frame first.

Commands and names of threads stand there as they are, with line ends and semicolons. The file is read twice: which
processes and folders there are has to be known before a line can be told to be the user's.
"""

import functools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import hotlap
from hotlap.records.diagnosis import Place
from hotlap.records.errors import RecordError, unable
from hotlap.records.profilers import PySpy, SpyGroup, SpyLine
from hotlap.records.whose import INSTALLED, users

MOST_BYTES: Final = 256 << 20
MOST_STACKS: Final = 300_000
"""Different ones, each of which may need a few hundred bytes to count."""
LONGEST: Final = 1 << 18
"""Characters of a record; a thousand frames."""
LONGEST_FRAME: Final = 1000
MOST_PLACES: Final = 50_000
"""That are told only once whose they are."""
MOST_LINES: Final = 100
LONGEST_NAME: Final = 200
LONGEST_COUNT: Final = 12
START: Final = re.compile(r'process \d{1,10}:"')
PROCESS: Final = re.compile(r'(?:^|;)process (\d{1,10}):"([^"]*)')
THREAD: Final = ";thread ("
STANDARD: Final = re.compile(r".*/lib(?:64)?/python3\.\d{1,2}t?/")
OF_TORCH: Final = ("nn/modules/module.py", "_tensor.py", "optim/optimizer.py", "utils/data/dataloader.py")
"""Files by which torch's folder is known where it is not an installed package."""
WORKER: Final = ("_worker_loop", "/torch/utils/data/_utils/worker.py")
HOTLAP: Final = str(Path(hotlap.__file__).resolve().parent) + os.sep
AGENT: Final = (f"{HOTLAP}agent", f"{HOTLAP}launch{os.sep}inject", f"{HOTLAP}launch{os.sep}inject_site")
"""Folders of hotlap's own work; what it calls for the script lies in others."""
SAMPLES: Final = re.compile(r"Samples: \d+ Errors: (\d{1,12})")
LATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|ms) behind in sampling", re.A)
HOTLAPS: Final = "hotlap's own"
WORKERS: Final = "loader workers"


class Frame(NamedTuple):
    """A frame as py-spy names it; line 0 where it names none."""

    function: str
    file: str
    line: int


class Stack(NamedTuple):
    """A record. process: the innermost, whose thread it is; command: its command line."""

    process: int
    command: str
    thread: str
    name: str
    frames: tuple[Frame, ...]
    samples: int

    @property
    def main(self) -> bool:
        """Whether it is the main thread's, which has the number of its process on Linux."""
        return self.name == "MainThread" or self.thread == str(self.process)


@dataclass
class _Survey:
    """What has to be known before places can be told. stacks: different ones of each process' main thread."""

    stacks: Counter[int] = field(default_factory=Counter)
    mains: dict[int, str] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    standard: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=lambda: {HOTLAP})
    files: set[str] = field(default_factory=set)
    unread: int = 0

    def see(self, stack: Stack) -> None:
        for frame in stack.frames:
            if frame.file not in self.files:
                self._file(frame.file)
        if any(frame.function == WORKER[0] and frame.file.endswith(WORKER[1]) for frame in stack.frames):
            self.workers.add(stack.process)
        self.stacks[stack.process] += stack.main
        module = next((frame.file for frame in stack.frames if frame.file[:1] != "<"), "")
        if stack.main and module and stack.process not in self.mains:
            self.mains[stack.process] = str(Path(module).parent) + os.sep

    def _file(self, file: str) -> None:
        self.files.add(file)
        if match := STANDARD.match(file):
            self.standard.add(match[0])
        for end in OF_TORCH:
            if file.endswith(f"/torch/{end}"):
                self.libraries.add(file.removesuffix(end))

    def training(self, pids: Collection[int]) -> set[int]:
        """Those of `pids` that were seen, else the process whose main thread was in the most different places."""
        seen = {pid for pid in pids if pid in self.stacks}
        others = [(amount, -pid) for pid, amount in self.stacks.items() if pid not in self.workers]
        return seen or {-pid for _, pid in sorted(others)[-1:]}


def read_py_spy(path: Path, said: Path | None = None, pids: Collection[int] = ()) -> PySpy:
    """said: what py-spy printed; pids: processes that are known to train. Raises RecordError where there is no stack in
    the file."""
    with unable(f"read {path}"):
        if path.stat().st_size > MOST_BYTES:
            raise RecordError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
        survey = _Survey()
        for number, stack in enumerate(_stacks(path, survey)):
            if number >= MOST_STACKS:
                raise RecordError(f"{path} has more than {MOST_STACKS:,} different stacks; record for a shorter time")
            survey.see(stack)
        count = _Count(survey, survey.training(pids))
        for stack in _stacks(path):
            count.add(stack)
    if not survey.stacks:
        raise RecordError(
            f"{path} is not what `py-spy record --subprocesses --threads --format raw` writes, or is empty"
        )
    errors, late = _complaints(said)
    return PySpy(
        pids=tuple(sorted(count.pids)),
        samples=count.samples,
        own=count.own,
        lines=tuple(_lines(count.lines))[:MOST_LINES],
        beside=count.groups(),
        errors=errors,
        late=len(late),
        late_s=max(late, default=0.0),
        unread=survey.unread,
    )


def _stacks(path: Path, survey: _Survey | None = None) -> Iterator[Stack]:
    """The records of the file; how many are none goes to `survey`."""
    with path.open("rb") as file:
        pending, unread = "", 0
        while line := file.readline(LONGEST).decode("utf-8", "replace"):
            begins = START.match(line) is not None
            unread += begins and bool(pending)
            pending = line if begins else pending + line if pending else ""
            unread += not pending
            if len(pending) > LONGEST:
                pending, unread = "", unread + 1
            stack = _stack(pending) if pending[-2:-1].isdigit() else None
            if stack is not None:
                yield stack
                pending = ""
    if survey is not None:
        survey.unread = unread + bool(pending)


def _stack(text: str) -> Stack | None:
    """By hand: a regular expression may take long over a hostile record. None where it is not whole."""
    body, _, count = text.rstrip("\n").rpartition(" ")
    processes, thread, rest = body.rpartition(THREAD)
    found = PROCESS.findall(processes)
    number, _, rest = rest.partition(")")
    name, *frames = rest.removeprefix(": ").split(";")
    if frames and not body.endswith(")"):  # a name with a semicolon and a line end
        return None
    if not (thread and found and number and count.isascii() and count.isdigit() and len(count) <= LONGEST_COUNT):
        return None
    process, command = found[-1]
    known = tuple(frame for part in frames if (frame := _frame(part)) is not None)
    return Stack(int(process), command[:LONGEST_NAME], number[:LONGEST_NAME], name[:LONGEST_NAME], known, int(count))


@functools.lru_cache(MOST_PLACES)
def _frame(text: str) -> Frame | None:
    """`FUNCTION (FILE:LINE)`, or without the line."""
    function, begins, rest = text.partition(" (")
    file, _, line = rest.removesuffix(")").rpartition(":")
    if not begins or not rest.endswith(")") or len(text) > LONGEST_FRAME:
        return None
    if file and line.isascii() and line.isdigit():
        return Frame(function, file, int(line))
    return Frame(function, rest.removesuffix(")"), 0)


def _named(frame: Frame) -> str:
    """`Random.gauss (random.py)`, `_compile_bytecode (importlib._bootstrap_external)`."""
    frozen = frame.file.startswith("<frozen ")
    file = frame.file[len("<frozen ") : -1] if frozen else Path(frame.file).name
    return f"{frame.function} ({file})"[:LONGEST_NAME]


At = Counter[tuple[Frame | None, str]]
"""Samples by line of the user's and innermost function."""


class _Count:
    """Samples by line and innermost function, of the main threads of `pids`, and of what runs beside them."""

    def __init__(self, survey: _Survey, pids: set[int]) -> None:
        self.survey, self.pids = survey, pids
        self.samples = self.own = 0
        self.lines: At = Counter()
        self._threads: dict[str, set[tuple[int, str]]] = defaultdict(set)
        self._beside: dict[str, At] = defaultdict(Counter)
        self._libraries, self._standard = tuple(survey.libraries), tuple(survey.standard)
        self._users = functools.lru_cache(MOST_PLACES)(
            lambda file, main: users(file, self._libraries, self._standard, main)
        )

    def add(self, stack: Stack) -> None:
        """Count one record."""
        main = self.survey.mains.get(stack.process, "")
        line = next((frame for frame in reversed(stack.frames) if self._users(frame.file, main)), None)
        last = stack.frames[-1] if stack.frames else None
        inner = "" if last is None or last == line else _named(last)
        if stack.process in self.pids and stack.main:
            self.samples += stack.samples
            if self._hotlaps(stack):
                self.own += stack.samples
            else:
                self.lines[line, inner] += stack.samples
            return
        name = self._name(stack)
        self._threads[name].add((stack.process, stack.thread))
        self._beside[name][line, inner] += stack.samples

    def _hotlaps(self, stack: Stack) -> bool:
        """Whether the innermost frame is the agent's, or the standard library's that it calls."""
        for frame in reversed(stack.frames):
            if str(Path(frame.file).parent) in AGENT:
                return True
            if not self._of_python(frame.file):
                return False
        return False

    def _of_python(self, file: str) -> bool:
        inside = file.startswith(self._standard) and not any(folder in file for folder in INSTALLED)
        return inside or file.startswith("<")

    def _name(self, stack: Stack) -> str:
        """Of its kind."""
        beyond = next((frame for frame in stack.frames if not self._of_python(frame.file)), None)
        if beyond is not None and beyond.file.startswith(HOTLAP):
            return HOTLAPS
        thread = "" if stack.main else re.sub(r"\d+", "N", stack.name) or "threads without a name"
        if stack.process in self.survey.workers:
            return f"{WORKERS}: {thread}" if thread else WORKERS
        if stack.process in self.pids:
            return thread
        command = " ".join(Path(word).name for word in stack.command.split()[:3])
        return f"{command}: {thread}" if thread else command

    def groups(self) -> tuple[SpyGroup, ...]:
        """Most samples first."""
        found = [
            SpyGroup(
                name=name,
                threads=len(self._threads[name]),
                processes=len({process for process, _ in self._threads[name]}),
                samples=at.total(),
                line=next(_lines(at)),
            )
            for name, at in self._beside.items()
        ]
        return tuple(sorted(found, key=lambda group: -group.samples))


def _lines(counter: At) -> Iterator[SpyLine]:
    """Lines, most samples first, each with what is innermost there most often."""
    inside: dict[Frame | None, Counter[str]] = defaultdict(Counter)
    for (line, inner), count in counter.items():
        inside[line][inner] += count
    for line, inners in sorted(inside.items(), key=lambda item: -item[1].total()):
        ((inner, samples),) = inners.most_common(1)
        where = None if line is None else Place(file=line.file, line=line.line or None, function=line.function)
        yield SpyLine(where=where, samples=inners.total(), inner=inner, inner_samples=samples)


def _complaints(said: Path | None) -> tuple[int, list[float]]:
    """Looks that failed, and by how many seconds it was behind each time that it said so."""
    late: list[float] = []
    errors, left = 0, MOST_BYTES >> 4
    if said is None or not said.is_file():
        return errors, late
    with said.open("rb") as file:
        while left > 0 and (line := file.readline(LONGEST)):
            left -= len(line)
            text = line.decode("utf-8", "replace")
            errors += sum(map(int, SAMPLES.findall(text)))
            late += [float(amount) / (1000 if unit == "ms" else 1) for amount, unit in LATE.findall(text)]
    return errors, late
