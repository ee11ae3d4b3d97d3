"""The error tree and the exit codes, in one place.

HotlapError                 125
├── UsageError              125   no command, a bad option, a folder that exists
├── RecordError             125   a file that is missing, broken, too large or from another version
│   ├── RecipeError         125   a recipe that can't be used
│   └── PackageMissing      125   what a file would be read with is not installed
├── AgentError              125   the agent could not start inside the command
├── CommandError
│   ├── CommandNotFound     127   as a shell says it
│   └── CommandNotRunnable  126
├── CommandFailed           123   tune: the command itself fails, so there is nothing to compare; bench: some did
├── NothingMeasured         122   no step was seen, or too few before the command ended
└── Interrupted             130   before anything was known

`hotlap run` ends with the command's own exit code (or by the same signal); the codes above are used only when hotlap
could not do its work. 0 of `tune` means that it finished, with or without a gain. 130: interrupted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

USES: Final = {
    "polars": "reading traces", "scipy": "a test of significance", "libcst": "patching", "jinja2": "the report page",
    "sqlalchemy": "the history", "alembic": "the history", "psycopg": "a history in PostgreSQL",
    "fastapi": "the dashboard", "uvicorn": "the dashboard",
}  # fmt: skip
"""Packages that are imported late, and what takes each."""
OTHERS: Final = ("msgspec", "tomli_w", "rich", "typer", "psutil", "numpy")


class HotlapError(Exception):
    """Anything hotlap reports as its own failure. The message says what, where and what to do."""

    exit_code: ClassVar[int] = 125


class UsageError(HotlapError):
    """The command line can't be carried out as it stands."""


class RecordError(HotlapError):
    """A file of hotlap's could not be read or written."""


class RecipeError(RecordError):
    """A recipe can't be used."""


@contextmanager
def unable(to: str) -> Iterator[None]:
    """What the system refuses as a RecordError: cannot do what `to` says."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"cannot {to}: {error.strerror or error}") from error


class PackageMissing(RecordError):
    """A package that is imported late is not there, so what it is for can't be done."""


@contextmanager
def missing_named(extra: str = "") -> Iterator[None]:
    """Raises PackageMissing where an import inside fails: which package, what it is for, how to get it.

    extra: of hotlap, which brings the package.
    """
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name == "hotlap":
            raise  # an error in here
        known = extra or name in {*USES, *OTHERS}  # another's may have another name at the index
        if not known or not isinstance(error, ModuleNotFoundError):
            raise PackageMissing(f"a package does not load: {error}") from error
        package = name.replace("_", "-")
        needs = f"{USES.get(name, 'this')} needs {package}, which is not installed"
        wanted = f"'hotlap[{extra}]'" if extra else package
        raise PackageMissing(f"{needs}: pip install {wanted}") from error


class AgentError(HotlapError):
    """The agent could not start inside the command, so nothing of it can be measured."""


class CommandError(HotlapError):
    """The user's command could not be started."""

    exit_code = 126


class CommandNotFound(CommandError):
    """There is no such program."""

    exit_code = 127


class CommandNotRunnable(CommandError):
    """The program can't be executed."""


class CommandFailed(HotlapError):
    """The user's command fails without any lever."""

    exit_code = 123


class NothingMeasured(HotlapError):
    """No steps, or too few, were seen."""

    exit_code = 122


class Interrupted(HotlapError):
    """Ctrl-C before there was anything to keep."""

    exit_code = 130


EXIT_CODES: dict[int, str] = {
    0: "done (for `run`: the command's own exit code; for `check`: PASS)",
    1: "`check`: FAIL",
    2: "`check`: INCONCLUSIVE",
    121: "`run --steps`: hotlap had to end the command after its steps; a file it was writing may be cut short",
    122: "no training step was seen, or too few to measure",
    123: "the command itself fails, so there is nothing to compare; `bench`: not all commands were measured",
    125: "hotlap could not do it: bad option, bad file, existing folder, full disk",
    126: "the command can't be executed",
    127: "the command was not found",
    130: "interrupted; what was known is kept",
}
