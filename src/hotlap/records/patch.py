"""Records of a patch: `patch.json`."""

from typing import Any

import msgspec

from .tune import Interval, Parity


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's source. file: relative to the command's folder. text: what stands there."""

    file: str
    line: int
    text: str = ""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that stands in the patched source. where: the lines before the patch. already: the source had the lever.

    partly: what of the lever is not in the source, where something is not. notes: what the user should know.
    """

    lever: str
    settings: dict[str, Any]
    where: tuple[Line, ...] = ()
    already: bool = False
    partly: str = ""
    notes: tuple[str, ...] = ()


class NotWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that could not be written safely. look_at: the lines to look at; source: how it is written by hand."""

    lever: str
    settings: dict[str, Any]
    why: str
    look_at: tuple[Line, ...] = ()
    source: str = ""


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a run, and what becomes of its line. finding: the finding's title; share, cost_ms: as the diagnosis
    has it; at: the finding's line, None where none is known.

    written: what the patched line does, "" where it is left as it is; notes: what is different then; review: whether
    that is right only the user can judge. why, look_at: of a line that is left, as in `NotWritten`; instead: what to do
    by hand.
    """

    finding: str
    share: float
    cost_ms: float | None = None
    at: Line | None = None
    written: str = ""
    notes: tuple[str, ...] = ()
    review: bool = False
    why: str = ""
    look_at: tuple[Line, ...] = ()
    instead: str = ""


class PatchedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the patch changes. before, after: SHA-256 of the file's bytes. added, removed: number of lines."""

    file: str
    before: str
    after: str
    added: int
    removed: int


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The patched source measured.

    ratio: step time under the recipe over the patched source's (above 1: the patched source is faster), of two fresh
    starts of each; interval: 95%, of the ratio. turns: that each had, all alive at once; 0 where the command ended by
    itself before, and whole runs were compared. recipe_ms, patched_ms: ms a step, their ratio is the ratio.

    parity: of the patched source against the bare command. same_speed: true where the interval stays above 0.95, false
    where it stays below 1, null where it is too wide to tell. why: what went wrong where ratio or parity is missing.
    folder: records of the runs.
    """

    ratio: float | None = None
    interval: Interval | None = None
    turns: int = 0
    recipe_ms: float | None = None
    patched_ms: float | None = None
    same_speed: bool | None = None
    parity: Parity | None = None
    why: str = ""
    folder: str = ""


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """`patch.json`. Of a recipe, or of a run's findings.

    recipe: path of the recipe, "" of a run; run: folder of the run, "" of a recipe. cwd: the command's folder.
    findings: of the run. written, not_written: levers of the recipe. variables: to set in the environment at launch;
    launch: the command with these variables. files: that it changes. looked_at: files that were read; skipped: files
    that could not be. diff: unified, as text (bytes that are no UTF-8 are replaced; the file written by `--diff` has
    them). applied: the user's files were written. verification: with `--verify`.
    """

    version: int = 1
    recipe: str
    run: str = ""
    command: tuple[str, ...]
    cwd: str
    findings: tuple[Rewrite, ...] = ()
    written: tuple[Written, ...] = ()
    not_written: tuple[NotWritten, ...] = ()
    variables: dict[str, str] = {}
    launch: tuple[str, ...] = ()
    files: tuple[PatchedFile, ...] = ()
    looked_at: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    diff: str = ""
    applied: bool = False
    verification: Verification | None = None
