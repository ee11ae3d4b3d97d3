"""A copy of the user's project to run: the files that it reads as source are real, everything else is a link to it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.records.errors import RecordError
from hotlap.source.project import Project


@dataclass(frozen=True)
class Copy:
    """Where a copy's command runs, and the command."""

    cwd: Path
    command: tuple[str, ...]


def copy(project: Project, command: Sequence[str], folder: Path) -> Copy:
    """Lay a project out in an empty folder, with its parent folder beside it (scripts read `../data`).

    Links lead to the user's own files, so what the command writes below them it writes where it always does. Raises
    RecordError.
    """
    paths = list(project.sources)
    root = Path(os.path.commonpath([project.cwd, *(path.parent for path in paths)]))
    base = root.parent
    wanted = [project.cwd / "_", *paths]
    made = {place for path in wanted for place in path.parents if place.is_relative_to(base)}
    try:
        for place in sorted(made):
            _lay(place, folder / place.relative_to(base), made | set(paths))
        for path, source in project.sources.items():
            target = folder / path.relative_to(base)
            target.write_bytes(source.data)
            target.chmod(path.stat().st_mode)
    except OSError as error:
        raise RecordError(f"cannot copy the project to {folder}: {error.strerror or error}") from error
    words = tuple(_moved(word, project, folder, base) for word in command)
    return Copy(folder / project.cwd.relative_to(base), words)


def _lay(place: Path, target: Path, real: set[Path]) -> None:
    """Make a folder whose entries are links, but for those that are made themselves."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(place):
        path = place / entry.name
        if path not in real and entry.name != "__pycache__":
            (target / entry.name).symlink_to(path)


def _moved(word: str, project: Project, folder: Path, base: Path) -> str:
    """A word of the command: an absolute path of a file that was copied leads to the copy."""
    path = Path(word)
    if path.is_absolute() and path.resolve() in project.sources:
        return str(folder / path.resolve().relative_to(base))
    return word
