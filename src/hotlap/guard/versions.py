"""The versions of a command that a check compares: commits, checked out beside the user's source tree."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hotlap.records.check import Version
from hotlap.records.errors import RecordError, UsageError

GIT: Final = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "advice.detachedHead=false",
    "-c", "user.name=hotlap", "-c", "user.email=hotlap@localhost",
)  # fmt: skip
"""No hook of the user's runs, and `stash create` needs a name, which machines of CI have not."""
GIT_S: Final = 300.0
NEVER_LINKED: Final = frozenset({"hotlap-runs", "__pycache__", ".git"})
MOST_LINKS: Final = 100_000


@dataclass(frozen=True)
class Repository:
    """A git repository. root: of its source tree. cwd: the folder in it that commands run in."""

    root: Path
    cwd: Path

    @classmethod
    def of(cls, cwd: Path) -> "Repository":
        """The one that a folder lies in. Raises UsageError."""
        here = cwd.resolve()
        try:
            root = Path(_git(here, "rev-parse", "--show-toplevel").strip())
        except RecordError as error:
            raise UsageError(f"{cwd} is in no git repository, so there are no commits to compare: {error}") from error
        return cls(root.resolve(), here)

    def commit(self, revision: str) -> str:
        """The full name of a commit. Raises UsageError."""
        try:
            return _git(
                self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
            ).strip()
        except RecordError:
            raise UsageError(f"git knows no commit {revision!r} here ({self.root})") from None

    def now(self) -> tuple[str, bool]:
        """A commit of the source tree as it is, and whether it has changes that are not committed. Files that git does
        not follow are no part of it. Raises RecordError."""
        stash = _git(self.root, "stash", "create", "hotlap check").strip()
        return (stash, True) if stash else (self.commit("HEAD"), False)

    def subject(self, commit: str) -> str:
        """The first line of a commit's message."""
        return _git(self.root, "show", "--no-patch", "--format=%s", "--end-of-options", commit).strip()

    def between(self, base: str, head: str) -> list[str]:
        """The commits after one, up to another, the oldest first, along first parents. Raises RecordError."""
        return _git(self.root, "rev-list", "--first-parent", "--reverse", f"{base}..{head}").split()

    @contextlib.contextmanager
    def worktree(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check a commit out into a folder that is not there yet, with links to what git does not follow (data,
        environments); the user's own tree is not touched. Yields the folder that commands run in. Raises
        RecordError."""
        _git(self.root, "worktree", "prune")
        _git(self.root, "worktree", "add", "--detach", "--force", "--end-of-options", str(folder), commit)
        try:
            self._link(folder)
            cwd = folder / self.cwd.relative_to(self.root)
            if not cwd.is_dir():
                raise RecordError(f"commit {commit[:10]} has no folder {self.cwd.relative_to(self.root)}")
            yield cwd
        finally:
            with contextlib.suppress(RecordError):
                _git(self.root, "worktree", "remove", "--force", "--force", str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(RecordError):
                _git(self.root, "worktree", "prune")

    def _link(self, folder: Path) -> None:
        """What lies in the user's tree and in no commit, and submodules, which git leaves empty."""
        others = _git(self.root, "ls-files", "-z", "--others", "--directory", "--no-empty-directory").split("\0")
        entries = (line.split() for line in _git(self.root, "ls-files", "-z", "--stage").split("\0"))
        modules = [" ".join(words[3:]) for words in entries if words and words[0] == "160000"]
        names = [*modules, *filter(None, others)]
        if len(names) > MOST_LINKS:
            raise RecordError(
                f"{len(names)} files that git does not follow lie beside files that it does, as {names[-1]}, and each "
                f"would be linked; put them into a folder of their own, which takes one link"
            )
        for name in names:
            path, target = self.root / name, folder / name.rstrip("/")
            if path.name in NEVER_LINKED or not path.exists():
                continue
            try:
                if name in modules and target.is_dir() and not any(target.iterdir()):
                    target.rmdir()
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    target.symlink_to(path.resolve())
            except OSError as error:
                raise RecordError(f"cannot link {path} into {folder}: {error.strerror or error}") from error

    def moved(self, word: str, folder: Path) -> str:
        """A word of the command: an absolute path below the source tree leads to the same place of a worktree."""
        path = Path(word)
        if path.is_absolute() and path.is_relative_to(self.root):
            return str(folder / path.relative_to(self.root))
        return word


def _git(cwd: Path, *words: str) -> str:
    """What git prints. Raises RecordError with what it says."""
    try:
        done = subprocess.run(
            [*GIT, *words], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip() or f"exit code {error.returncode}"
        raise RecordError(f"git {words[0]}: {said}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise RecordError(f"git {words[0]}: {error}") from error
    return done.stdout.decode(errors="surrogateescape")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for worktrees, gone afterwards. Both sides lie as deep in it: how long names and variables are moves
    what lies behind them in memory, which has changed times by percents (Mytkowicz et al., ASPLOS 2009)."""
    folder = Path(tempfile.mkdtemp(prefix="hotlap-check-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def at_commit(
    repository: Repository, name: str, commit: str, command: Sequence[str], folder: Path, changed: bool = False
) -> Iterator[Version]:
    """A version of a command as it was at a commit, laid out below `folder` for as long as the block lasts. changed:
    the commit stands for a source tree with changes."""
    with repository.worktree(commit, folder) as cwd:
        words = tuple(repository.moved(word, folder) for word in command)
        path = os.environ.get("PYTHONPATH", "")
        moved = os.pathsep.join(repository.moved(part, folder) for part in path.split(os.pathsep))
        variables = {"PYTHONPATH": moved} if moved != path else {}
        yield Version(name=name, command=words, cwd=str(cwd), commit=commit, changed=changed, variables=variables)


def range_of(text: str) -> tuple[str, str | None]:
    """`BASE..HEAD`, where a missing HEAD is the source tree as it is. Raises UsageError."""
    base, dots, head = text.partition("..")
    if not dots or not base or head.startswith("."):
        raise UsageError(f"{text!r} is no range of commits; write BASE..HEAD, or BASE.. for the source tree as it is")
    return base, head or None


def own_files(repository: Repository, files: Sequence[str]) -> list[str]:
    """Of files that a process imported, those of the user's own tree, which are in no worktree: an installed link to it
    (`pip install -e .`), so that both versions ran the same code. What lies behind a link is no source of a commit."""
    tracked = set(_git(repository.root, "ls-files", "-z").split("\0"))
    root = f"{repository.root}{os.sep}"
    return [file for file in files if file.startswith(root) and file[len(root) :] in tracked]
