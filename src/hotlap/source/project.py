"""The user's own files behind a command: its script or module, and what these import from beside them."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hotlap.records.errors import UsageError

from .scopes import Source, absolute
from .tree import Unreadable, read

MOST_FILES: Final = 400
NOT_THE_USERS: Final = ("site-packages", "dist-packages", ".venv", "venv", ".git", "hotlap-runs")


@dataclass(frozen=True)
class Project:
    """entry: the file that the command runs. sources: every file by its path, the entry first. skipped: files that
    could not be read, and why."""

    cwd: Path
    entry: Path
    sources: dict[Path, Source]
    skipped: tuple[str, ...] = ()

    @property
    def main(self) -> Source:
        """The file that the command runs."""
        return self.sources[self.entry]

    def module(self, name: str) -> Source | None:
        """The file that an import of this dotted name finds."""
        return next((source for source in self.sources.values() if source.module == name), None)


def read_project(command: Sequence[str], cwd: Path, within: Path | None = None) -> Project:
    """The files behind a command. within: the folder in which all of them must lie, where a record names the command
    and not the user: it may come from elsewhere. Raises UsageError where one does not, or where the command names no
    Python file, Unreadable where that is broken."""
    cwd = cwd.resolve()
    _check_inside(cwd, within)
    entry, module = entry_of(command, cwd)
    _check_inside(entry, within)  # what it imports is looked for in its own folder and in `cwd`
    folders = tuple(dict.fromkeys((cwd if module else entry.parent, cwd)))
    found = {entry: read(entry, _shown(entry, cwd), module or entry.stem)}
    skipped: dict[Path, str] = {}
    packages = _files_of(module, folders)  # that `-m` imports on the way
    waiting = [_imported_files(found[entry], folders), packages]
    while waiting:
        for path, name in waiting.pop():
            if path in found or path in skipped or len(found) >= MOST_FILES:
                continue
            try:
                found[path] = read(path, _shown(path, cwd), name)
            except Unreadable as error:
                skipped[path] = str(error)
            else:
                waiting.append(_imported_files(found[path], folders))
    return Project(cwd, entry, found, tuple(skipped.values()))


def _check_inside(path: Path, within: Path | None) -> None:
    if within is not None and not path.is_relative_to(within.resolve()):
        raise UsageError(
            f"{path} lies outside of {within}. Recipes and runs may come from elsewhere, so go to its folder, or "
            "give the command after the recipe or run"
        )


def entry_of(command: Sequence[str], cwd: Path) -> tuple[Path, str]:
    """The file that a command runs, and its dotted name where it runs it with `-m`. Raises UsageError."""
    for at, word in enumerate(command):
        if word in {"-m", "--module"} and at + 1 < len(command):
            module = command[at + 1]
            base = cwd.joinpath(*module.split("."))
            for path, name in ((base / "__main__.py", f"{module}.__main__"), (base.with_suffix(".py"), module)):
                if path.is_file():
                    return path.resolve(), name
        if word == "-c":
            break
        path = cwd / word
        if (word.endswith(".py") and path.is_file()) or (at == 0 and _is_script(path)):
            return path.resolve(), ""
    raise UsageError(
        f"none of your Python files was found in {' '.join(command)[:200]!r} (looked in {cwd}). Give the command "
        "after the recipe: hotlap patch recipe.toml python train.py"
    )


def _is_script(path: Path) -> bool:
    """`./train`: an executable that a Python runs."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return re.match(rb"#!.*python", file.readline(200)) is not None


def _files_of(name: str, folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """The files that importing a dotted name runs, with their own dotted names, where they are the user's."""
    chains = (list(_chain(name.split("."), folder)) for folder in folders if name)
    return next((found for found in chains if found), [])


def _chain(parts: Sequence[str], folder: Path) -> Iterator[tuple[Path, str]]:
    for depth in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:depth])
        name = ".".join(parts[:depth])
        for path in (base / "__init__.py", base.parent / f"{base.name}.py"):
            if path.is_file() and _users(path, folder):
                yield path.resolve(), name
                break
        else:
            if not base.is_dir():
                return


def _users(path: Path, folder: Path) -> bool:
    """Whether a file is the user's: below the folder, and not in an environment that lies there."""
    real = path.resolve()
    if not real.is_relative_to(folder):
        return False
    return not any(part in NOT_THE_USERS for part in real.relative_to(folder).parts)


def _imported_files(source: Source, folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """The user's files that a file imports. Some of what it imports are functions, for which there is no file."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.data)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level, source.package)
            if base is not None:
                names += [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
    return [file for name in names for file in _files_of(name, folders)]


def _shown(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
