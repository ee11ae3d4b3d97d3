"""A suite of commands: the file that names them, and their runs in turn."""

import os
import shlex
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import msgspec

from hotlap.diagnose.verdict import judged
from hotlap.experiment.alone import run_alone
from hotlap.experiment.outcome import read_outcome
from hotlap.experiment.watch import Listener, Out, Spare, left_out
from hotlap.launch.command import find_program
from hotlap.launch.environment import environment, variables
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import variables_of
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.durations import ms
from hotlap.records.errors import AgentError, CommandError, CommandNotRunnable, RecordError, UsageError
from hotlap.records.files import new_folder, read_bytes
from hotlap.records.run import Environment, Lever
from hotlap.records.suite import Middle, Outcome, Suite, SuiteCommand, SuiteRow, SuiteStart
from hotlap.runs.folder import RankFolder, RunFolder, TuneFolder
from hotlap.runs.plan import RunPlan

MAX_FILE: Final = 1 << 20
MOST_COMMANDS: Final = 200
LONGEST_NAME: Final = 60
LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True)
class Entry:
    """A command of a suite, checked. name: of its table. given: the table, with the defaults of the file in it. recipe:
    the path of its recipe; levers: of that, once somebody has read it."""

    name: str
    given: SuiteCommand
    words: tuple[str, ...]
    cwd: Path
    recipe: Path | None = None
    levers: tuple[Lever, ...] = ()


def read_suite(path: Path) -> list[Entry]:
    """The commands of a suite file, in its order. Raises RecordError that names the file and the field."""
    try:
        raw = tomllib.loads(read_bytes(path, MAX_FILE).decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, an integer of 5000 digits
        raise RecordError(f"{path} is not valid TOML: {error}") from error
    tables = {name: table for name, table in raw.items() if isinstance(table, dict)}
    defaults = {name: value for name, value in raw.items() if name not in tables}
    if unknown := sorted(defaults.keys() - (set(SuiteCommand.__struct_fields__) - {"command"})):
        raise RecordError(f"{path}: {unknown[0]!r} on top is no default; a command is a table: [name]")
    if not tables:
        raise RecordError(f'{path} names no command; write a table for each: [name], and in it command = "python ..."')
    if len(tables) > MOST_COMMANDS:
        raise RecordError(f"{path} has {len(tables)} commands; {MOST_COMMANDS} at most are run")
    return [_entry(path, name, {**defaults, **table}) for name, table in tables.items()]


def _entry(path: Path, name: str, table: Mapping[str, Any]) -> Entry:
    if not 0 < len(name) <= LONGEST_NAME or not LETTERS.issuperset(name) or name.startswith((".", "-")):
        raise RecordError(
            f"{path}: [{name[:LONGEST_NAME]}] is no name for a command: letters, digits, '.', '_' and '-', at most "
            f"{LONGEST_NAME}"
        )
    try:
        given = msgspec.convert(table, SuiteCommand)
        words = tuple(shlex.split(given.command)) if isinstance(given.command, str) else given.command
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: [{name}]: {error}") from error
    except ValueError as error:  # of shlex
        raise RecordError(f"{path}: [{name}]: command: {error}") from error
    texts = (*words, given.cwd, given.recipe or "", *given.variables.values())
    if not words or any("\0" in text for text in texts):
        raise RecordError(f"{path}: [{name}]: command: {'a word holds a zero byte' if words else 'it is empty'}")
    folder = path.resolve().parent
    recipe = folder / given.recipe if given.recipe else None
    return Entry(name, given, words, Path(os.path.normpath(folder / given.cwd)), recipe)  # no `..` on the screen


def chosen(entries: Sequence[Entry], names: Iterable[str]) -> list[Entry]:
    """Those with these names, in the order of the file; all without names. Raises UsageError."""
    wanted, known = set(names), [one.name for one in entries]
    if unknown := sorted(wanted.difference(known)):
        raise UsageError(f"--only: the suite has no {', '.join(unknown)}; it has {', '.join(known)}")
    return [one for one in entries if one.name in wanted or not wanted]


@dataclass
class _Made:
    """What is known of a command so far. verdicts: of the starts that were measured."""

    entry: Entry
    starts: list[SuiteStart] = field(default_factory=list)
    verdicts: list[tuple[SuiteStart, Diagnosis]] = field(default_factory=list)
    outcome: Outcome = "not run"
    why: str = ""
    left: dict[str, str] = field(default_factory=dict)
    on_device: bool = False

    @property
    def over(self) -> bool:
        """Whether it is not to be started again: one start came to nothing."""
        return self.outcome not in ("measured", "not run")

    def row(self) -> SuiteRow:
        """What is told of it."""
        middle = _middle_one(self.verdicts)
        measured = [start for start, _ in self.verdicts]
        return SuiteRow(
            name=self.entry.name,
            words=self.entry.words,
            cwd=str(self.entry.cwd),
            recipe=str(self.entry.recipe) if self.entry.recipe else None,
            left_out=self.left,
            outcome=self.outcome,
            why=self.why,
            starts=tuple(self.starts),
            step_ms=_over(one.step_ms for one in measured),
            throughput=_over(one.throughput for one in measured),
            throughput_unit=middle.throughput_unit if middle else "samples/s",
            tokens_s=_over(one.tokens_s for one in measured),
            peak_bytes=_over(one.peak_bytes for one in measured),
            peak_of="device" if self.on_device else "process",
            startup_s=_over(one.startup_s for one in measured),
            bound=middle.bound if middle else None,
            finding=next(iter(middle.findings), None) if middle else None,
            spread=middle.spread if middle else None,
            unknown=middle.unknown if middle else (),
        )


def _middle_one(verdicts: Sequence[tuple[SuiteStart, Diagnosis]]) -> Diagnosis | None:
    ordered = sorted((found for _, found in verdicts), key=lambda one: one.step_ms)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _over(values: Iterable[float | None]) -> Middle | None:
    known = [value for value in values if value is not None]
    return Middle(median=median(known), low=min(known), high=max(known)) if known else None


class Turns:
    """The commands of a suite, run in turn: the first start of each, then the second of each, so that what else the
    machine does meets all. repeat: starts, in place of what the file says. told: hears the result so far after each
    start."""

    def __init__(
        self,
        path: Path,
        entries: Sequence[Entry],
        folder: Path,
        listener: Listener,
        repeat: int | None = None,
        told: Callable[[Suite], None] = lambda suite: None,
    ) -> None:
        self.path, self.folder, self.listener, self.told = path, folder, listener, told
        self.repeat = repeat
        self.made = [_Made(one) for one in entries]
        self.started, self._begun = time.time(), time.monotonic()
        self._machine = environment(Path.cwd())
        self._machines: dict[Path, Environment] = {}

    def run(self) -> Suite:
        """Run them. On Ctrl-C what is known is returned, with `complete` false. Raises RecordError."""
        new_folder(self.folder)
        adopt_orphans()
        complete = False
        self._write(self.result(complete))  # what can't be written is told before anything runs
        try:
            for number in range(max(map(self._starts, self.made), default=0)):
                for one in self.made:
                    if number < self._starts(one) and not one.over:
                        self._start(one, number)
                        self._write(self.result(complete))
            complete = True
        except KeyboardInterrupt:
            self.listener.result("interrupted")
        return self._write(self.result(complete))

    def _starts(self, made: _Made) -> int:
        return self.repeat or made.entry.given.repeat

    def _write(self, found: Suite) -> Suite:
        TuneFolder(self.folder).write(found)
        self.told(found)
        return found

    def result(self, complete: bool) -> Suite:
        """What is known."""
        return Suite(
            suite=str(self.path), rows=tuple(one.row() for one in self.made), complete=complete,
            started=self.started, seconds=time.monotonic() - self._begun, environment=self._machine,
        )  # fmt: skip

    def _start(self, made: _Made, number: int) -> None:
        entry, begun = made.entry, time.monotonic()
        plan = self._plan(entry, number)
        self.listener.trial(entry.name, f"start {number + 1} of {self._starts(made)}")
        spare = Spare(frozenset(one.name for one in entry.levers), len(entry.levers))
        found: Diagnosis | None = None
        outcome: Outcome = "interrupted"
        why, peaks, left = "Ctrl-C", (None, None), dict[str, Out]()
        try:
            if not entry.cwd.is_dir():
                raise CommandNotRunnable(f"no such folder: {entry.cwd}")
            find_program(entry.words, entry.cwd)
            ended = run_alone(plan, self.listener, entry.given.timeout, spare)
            came, why, told = read_outcome(plan.folder, ended, entry.given.timeout, spare)
            outcome = cast("Outcome", came)  # none is too slow here
            peaks, left = (told.get("peak_memory_bytes"), told.get("peak_rss_bytes")), left_out(plan.folder, spare)
            if outcome == "measured":
                found, nothing = judged(plan.folder, ours=True)
                outcome, why = ("measured", why) if found is not None else ("too few steps", nothing)
        except CommandError as error:
            outcome, why = "not started", str(error)
        except AgentError as error:
            outcome, why = "refused", str(error)
        finally:  # Ctrl-C too
            start = SuiteStart(
                folder=plan.folder.name,
                outcome=outcome,
                why=why,
                step_ms=found.step_ms if found else None,
                spread=found.spread if found else None,
                throughput=found.throughput if found else None,
                tokens_s=found.tokens_s if found else None,
                peak_bytes=peaks[0] or peaks[1],
                startup_s=startup_s(RunFolder(plan.folder)) if found else None,
                wall_s=time.monotonic() - begun,
            )
            made.starts.append(start)
            made.outcome, made.why = outcome, why
            made.left |= {name: one.why for name, one in left.items()}
            made.on_device = made.on_device or bool(peaks[0])
        if found is not None:
            RunFolder(plan.folder).write(found)
            made.verdicts.append((start, found))
        self.listener.result(f"{entry.name}  {f'{ms(start.step_ms)} a step' if found else f'{outcome}: {why}'}")

    def _plan(self, entry: Entry, number: int) -> RunPlan:
        given = entry.given
        if entry.cwd not in self._machines:
            self._machines[entry.cwd] = environment(entry.cwd)
        set_here = {**given.variables, **variables_of(entry.levers)}
        machine = msgspec.structs.replace(
            self._machines[entry.cwd], variables=variables({**os.environ, **given.variables})
        )
        return RunPlan(
            command=entry.words,
            folder=new_folder(self.folder / f"{entry.name}-{number + 1}"),
            environment=machine,
            steps=given.steps,
            least_steps=given.steps,
            every_step=False,
            levers=entry.levers,
            variables=set_here,
            recipe=str(entry.recipe) if entry.recipe else None,
            cwd=entry.cwd,
        )


def startup_s(run: RunFolder) -> float | None:
    """Seconds from the start of a command to the beginning of its first step, in the rank where that took longest; None
    where no step was seen."""
    firsts = [began for rank in run.observed if (began := _first_step(rank)) is not None]
    return max(0.0, max(firsts) - run.record.started) if firsts else None


def _first_step(rank: RankFolder) -> float | None:
    """When it began, in seconds since the epoch."""
    return next((step.time - step.wall_ms / 1000 for step in rank.steps), None)
