"""Which findings `hotlap patch` of their run may have a diff for.

Whether there is one is found from the syntax tree, a floor above; here the text of the line has to do.
"""

import re
import shlex
from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.diagnosis import WAITS, Finding, Place

from .source import lines_of

TOLD: Final = "; hotlap patch "
FORMS: Final = re.compile(
    r"(?!(el)?if |while |return |assert |yield ).*"
    r"(\.item\(\)|\bfloat\(|\bprint\(|\.(set_\w+|debug|info|warning)\(|\b(synchronize|empty_cache)\(\))"
)
"""Lines that read a value, show one or only wait, and do not decide by it: `patch/waits/` has other forms of some."""


def with_patch(finding: Finding, folder: Path, cwd: Path) -> Finding:
    """The finding of a run with the command that makes the diff, where its line has a form that may be rewritten."""
    place = finding.where
    if place is None or not (finding.title.startswith(WAITS) or finding.id == "allocator"):
        return finding
    text = _line(place, cwd)
    if not FORMS.match(text) or (finding.id == "allocator" and "empty_cache(" not in text):
        return finding
    told = f"{finding.instead}{TOLD}{shlex.quote(str(folder))} shows the diff, or why there is none"
    return msgspec.structs.replace(finding, instead=told)


def by_hand(finding: Finding) -> str:
    """What to do instead, without that command."""
    return finding.instead.partition(TOLD)[0]


def _line(place: Place, cwd: Path) -> str:
    """The text of a line of Python source; "" where it is not there, or not the user's."""
    path = cwd / place.file
    lines = lines_of(path) if place.line is not None and "site-packages" not in path.parts else []
    return lines[place.line - 1].strip() if place.line is not None and 0 < place.line <= len(lines) else ""
