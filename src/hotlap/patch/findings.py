"""A patch for a run's findings: the lines at which the host waits for the device, each as one of `waits/` has it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import libcst as cst
import msgspec

from hotlap.diagnose.patchable import by_hand
from hotlap.diagnose.verdict import verdict_here
from hotlap.records.diagnosis import WAITS, Finding, Place
from hotlap.records.patch import Line, Patch, Rewrite
from hotlap.records.run import Run
from hotlap.runs.folder import RunFolder
from hotlap.source.places import CannotTell, Places
from hotlap.source.project import read_project
from hotlap.source.scopes import Source
from hotlap.source.tree import Unreadable

from .edits import Changes, replaced
from .patch import Patched, patched
from .waits import REWRITES
from .waits._base import Change, Wait

CHANGED: Final = "the file changed after the run; check that this is still the line that waited"
MOVED: Final = "the line is no longer in `{}`; run and profile the command again"
DECIDES: Final = "what the script does next depends on the value"
RETURNED: Final = "the value is returned, and the caller may need a number"
CALLED: Final = "the call may do more than show the value"
ELSE: Final = "hotlap knows no other form of this line that surely computes the same"


def make(folder: Path, command: Sequence[str], cwd: Path) -> Patched:
    """Rewrite the lines of a run's findings of waits in memory; no file is changed.

    command: the user's, or nothing to take the run's own, whose folder and files must lie in `cwd`. Raises UsageError
    where no file of the user's is found, NothingMeasured, RecordError.
    """
    of_run = RunFolder(folder)
    run = of_run.record
    words = tuple(command) or run.command
    there = Path(run.cwd) if os.path.isdir(run.cwd) else cwd  # noqa: PTH112 - a name that no folder can have is none
    if command and not there.resolve().is_relative_to(cwd.resolve()):
        there = cwd  # as the user typed it
    before = read_project(words, there, None if command else cwd)
    work = _Work(Places(before, of_run.facts, cuda=True), run, Changes(before))
    diagnosis = of_run.diagnosis or verdict_here(folder)
    found = [work.rewrite(finding) for finding in diagnosis.findings if work.is_wait(finding)]
    after = work.changes.made()
    record = Patch(recipe="", run=str(folder), command=words, cwd=str(before.cwd), findings=tuple(found))
    return patched(record, before, after)


@dataclass
class _Work:
    """What is changed so far."""

    places: Places
    run: Run
    changes: Changes

    def is_wait(self, finding: Finding) -> bool:
        """Whether a finding is of a wait, or of memory that a line of the user's gives back to the driver."""
        at = self._at(finding.where)
        return finding.title.startswith(WAITS) or (at is not None and "empty_cache(" in at.text)

    def rewrite(self, finding: Finding) -> Rewrite:
        """A finding's line, rewritten or left as it is."""
        source, at = self._source(finding.where), self._at(finding.where)
        about = Rewrite(finding=finding.title, share=finding.share, cost_ms=finding.cost_ms, at=at)
        try:
            outcome = self._outcome(finding, source)
        except CannotTell as why:
            return msgspec.structs.replace(about, why=why.why, look_at=why.lines, instead=by_hand(finding))
        stale = source is not None and 0 < self.run.started < source.path.stat().st_mtime
        notes = (*outcome.notes, *((CHANGED,) if stale else ()))
        return msgspec.structs.replace(about, written=outcome.written, notes=notes, review=outcome.review)

    def _outcome(self, finding: Finding, source: Source | None) -> Change:
        place = finding.where
        if place is None or place.line is None:
            raise CannotTell("the run does not know the line; profile it with hotlap run --profile")
        if source is None:
            raise CannotTell("the file is not one that this command runs or imports from its folder")
        node = _at_line(source, place.line)
        scope = source.scope(node)
        named = [part for part in (place.function or "").split(".") if not part.startswith("<")]  # as `qualname` has it
        if place.function is not None and ".".join(named) != scope.qualname:
            raise CannotTell(MOVED.format(place.function))
        if not isinstance(node, cst.SimpleStatementLine):
            raise CannotTell(DECIDES if isinstance(node, cst.If | cst.While) else ELSE)
        wait = Wait(self.places, scope, node, finding.title.removeprefix(WAITS))
        outcome = next((found for rewrite in REWRITES if (found := rewrite(wait)) is not None), None)
        if outcome is None:
            raise CannotTell(_otherwise(wait.statement))
        try:
            replaced(source, outcome.changes)
        except Unreadable as error:
            raise CannotTell(f"the result would not be valid Python: {error}") from error
        self.changes.put(source, outcome.changes)
        return outcome

    def _source(self, place: Place | None) -> Source | None:
        """The file of a place, where it was read."""
        if place is None:
            return None
        file, cwd = Path(place.file), Path(self.run.cwd)
        here = self.places.project.cwd / (file.relative_to(cwd) if file.is_relative_to(cwd) else file)
        return self.places.project.sources.get(here.resolve())

    def _at(self, place: Place | None) -> Line | None:
        """A place with its text, as far as it is known."""
        if place is None or place.line is None:
            return None
        source = self._source(place)
        return source.place_of(place.line) if source else Line(file=place.file, line=place.line)


def _at_line(source: Source, line: int) -> cst.CSTNode:
    """The simple statement that a line is part of, else the innermost block whose head it is; else the file."""
    for node in source.every(cst.SimpleStatementLine):
        if source.line(node) <= line <= source.end(node):
            return node
    blocks = [node for node in source.walk.parents if isinstance(node, cst.BaseCompoundStatement)]
    return [source.tree, *(node for node in blocks if source.line(node) <= line < source.line(node.body))][-1]


def _otherwise(statement: cst.BaseSmallStatement | None) -> str:
    """Why a line is left that no rewrite knows."""
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        return CALLED
    return RETURNED if isinstance(statement, cst.Return) else DECIDES if isinstance(statement, cst.Assert) else ELSE
