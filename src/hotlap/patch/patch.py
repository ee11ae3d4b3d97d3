"""A whole patch: from a recipe and the user's files to a diff, and what could not be written."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec

from hotlap.levers import _same_random, all_levers, variables_of
from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import read_bytes, read_recipe, write_atomic
from hotlap.records.patch import Line, NotWritten, Patch, PatchedFile, Written
from hotlap.records.run import Facts, Lever
from hotlap.runs.folder import TuneFolder
from hotlap.source.places import CannotTell, Places
from hotlap.source.project import Project, read_project
from hotlap.source.scopes import Source
from hotlap.source.tree import Unreadable
from hotlap.tune.recipe import checked

from .diff import changed, diff
from .rules import all_rules
from .rules._base import CannotWrite, Edit
from .rules._unwritten import unwritten

DRAWS = "dropout and the like draw other random numbers, as under the recipe"


@dataclass(frozen=True)
class Patched:
    """A patch and the project that it makes. levers: those that stand in the source now."""

    record: Patch
    before: Project
    after: Project
    diff: bytes
    levers: tuple[Lever, ...] = ()

    @property
    def changed(self) -> list[Source]:
        """The files that it changes, as they are with it."""
        sources = self.before.sources
        return [source for path, source in self.after.sources.items() if source.data != sources[path].data]


def make(recipe_path: Path, command: Sequence[str], cwd: Path) -> Patched:
    """Write a recipe into a copy of the sources in memory; no file is changed.

    command: the user's, or nothing to take the recipe's own, whose files must lie in `cwd`. Raises RecipeError for a
    recipe that `run --recipe` would refuse too, UsageError where no file of the user's is found, RecordError.
    """
    recipe = read_recipe(recipe_path)
    levers = checked(recipe_path, recipe)
    words = tuple(command) or recipe.command
    if not words:
        raise UsageError(
            f"{recipe_path} does not name its command. Give it: hotlap patch {recipe_path} python train.py"
        )
    facts = facts_beside(recipe_path)
    before = read_project(words, cwd, None if command else cwd)
    cuda = facts.device == "cuda" if facts is not None else str(recipe.environment.get("device", "cpu")) != "cpu"
    after, written, refused = write(before, levers, facts, cuda)
    done = {item.lever for item in written}
    inside = tuple(lever for lever in levers if lever.name in done)
    variables = variables_of(inside)
    launch = (*(f"{name}={value}" for name, value in variables.items()), *words) if variables else ()
    record = Patch(
        recipe=str(recipe_path), command=words, cwd=str(cwd), written=tuple(written), not_written=tuple(refused),
        variables=variables, launch=launch,
    )  # fmt: skip
    return patched(record, before, after, inside)


def patched(record: Patch, before: Project, after: Project, levers: tuple[Lever, ...] = ()) -> Patched:
    """The patch that makes one project of another. record: without what follows from that."""
    files, whole = [], b""
    for path, source in after.sources.items():
        old = before.sources[path]
        text = diff(source.shown, old.data, source.data)
        if text:
            added, removed = changed(text)
            files.append(PatchedFile(
                file=source.shown, before=old.digest, after=source.digest, added=added, removed=removed
            ))  # fmt: skip
            whole += text
    shown = tuple(source.shown for source in before.sources.values())
    record = msgspec.structs.replace(
        record, files=tuple(files), skipped=before.skipped, looked_at=shown, diff=whole.decode("utf-8", "replace")
    )
    return Patched(record, before, after, whole, levers)


def write(
    before: Project, levers: Sequence[Lever], facts: Facts | None, cuda: bool
) -> tuple[Project, list[Written], list[NotWritten]]:
    """Apply the rules one after the other, each to what the last one left."""
    recipe = {lever.name: lever.settings for lever in levers}
    project = before
    written: list[Written] = []
    refused: list[NotWritten] = []
    order = [name for name in all_rules() if name in recipe]
    for name in [*order, *(name for name in recipe if name not in order)]:
        settings = dict(recipe[name])
        try:
            edit = _apply(Places(project, facts, cuda), name, settings)
        except CannotTell as why:
            lines = sorted(set(as_before(before, project, why.lines)), key=lambda line: (line.file, line.line))
            by_hand = not isinstance(why, CannotWrite) or why.by_hand
            source = all_levers()[name].source(settings) if by_hand else ""
            refused.append(NotWritten(lever=name, settings=settings, why=why.why, look_at=tuple(lines), source=source))
            continue
        where = as_before(before, project, edit.where)
        project = edit.project
        written.append(Written(
            lever=name, settings=settings, where=where, already=edit.already, partly=edit.partly, notes=edit.notes,
        ))  # fmt: skip
    return project, written, refused


def _apply(places: Places, name: str, settings: dict[str, Any]) -> Edit:
    """A lever written. Raises CannotTell."""
    rule = all_rules().get(name)
    if rule is None:
        return unwritten(places, name)
    try:
        edit = rule.edit(places, settings)
    except Unreadable as error:
        raise CannotWrite(f"the result would not be valid Python: {error}") from error
    if not edit.already and _draws_otherwise(places, name, settings):
        return replace(edit, notes=(*edit.notes, DRAWS))
    return edit


def _draws_otherwise(places: Places, name: str, settings: dict[str, Any]) -> bool:
    """Whether a lever has the source draw other random numbers than it does: autocast only on CUDA."""
    as_it_is = all_levers()[name].for_parity(settings) or {}
    if _same_random.SETTING not in as_it_is or (name in _same_random.DTYPE and not places.cuda):
        return False
    return bool(places.calls_named("Dropout", "Dropout2d", *_same_random.DRAWING))


def as_before(before: Project, now: Project, lines: Sequence[Line]) -> tuple[Line, ...]:
    """Lines of files that rules have changed already, as they are in the user's files."""
    files = {source.shown: (before.sources[path], source) for path, source in now.sources.items()}
    found = []
    for line in lines:
        old, new = files[line.file]
        found.append(old.place_of(line.line if old is new else _line_before(old, new, line.line)))
    return tuple(found)


def _line_before(old: Source, new: Source, number: int) -> int:
    """The line that a line (from 1) of a later text was, or stands for."""
    for _, i1, i2, j1, j2 in SequenceMatcher(None, old.lines, new.lines, autojunk=False).get_opcodes():
        if j1 < number <= j2:
            return i1 + 1 + min(number - 1 - j1, max(0, i2 - i1 - 1))
    return number


# what is known of the command


def facts_beside(recipe: Path) -> Facts | None:
    """What the tune that made a recipe saw of the bare command, where the recipe still lies in its folder."""
    folder = TuneFolder(recipe.parent)
    try:
        trials = folder.tune.trials if folder.tune else ()
        bare = [trial for trial in trials if not trial.levers and trial.outcome == "measured"]
        return folder.trial(bare[0]).rank(0).facts if bare else None
    except RecordError:
        return None  # an old or a moved tune; the source alone has to do


# writing


def save_under(patched: Patched, folder: Path) -> None:
    """Write the changed files into another folder, at their places. Raises RecordError, UsageError."""
    for source in patched.changed:
        if Path(source.shown).is_absolute():
            raise UsageError(
                f"{source.shown} lies outside of the folder that the command runs in; run `hotlap patch` from above it"
            )
        target = folder / source.shown
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, source.data)


def apply(patched: Patched, force: bool) -> None:
    """Write the changed files in place: all of them, or none. Raises RecordError, UsageError.

    Refuses files with changes that are not committed, unless forced, and always files that are not what was read.
    """
    if not force:
        uncommitted = [source.shown for source in patched.changed if not _is_committed(source.path)]
        if uncommitted:
            raise UsageError(
                f"{', '.join(uncommitted)}: not committed as it is now, so the patch would mix with your "
                "changes. Commit it first, or give --force"
            )
    for source in patched.changed:
        if read_bytes(source.path) != patched.before.sources[source.path].data:
            raise RecordError(f"{source.shown} changed during patching, so nothing was written. Run it again")
    done: list[Path] = []
    try:
        for source in patched.changed:
            mode = source.path.stat().st_mode
            write_atomic(source.path, source.data)
            done.append(source.path)
            source.path.chmod(mode)
    except (RecordError, OSError):
        for path in done:
            write_atomic(path, patched.before.sources[path].data)
        raise


def _is_committed(path: Path) -> bool:
    """Whether git knows a file and it is as committed. A file in no repository counts as not."""
    command = ["git", "status", "--porcelain", "--ignored", "--", path.name]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stdout.strip()
