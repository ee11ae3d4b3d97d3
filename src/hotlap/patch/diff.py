"""A unified diff of the files as bytes, as `git apply` and `patch -p1` take it."""

import difflib
import re
from collections.abc import Sequence
from typing import Final

NO_END: Final = "\\ No newline at end of file\n"


def diff(name: str, before: bytes, after: bytes) -> bytes:
    """The change of one file; b"" where there is none. name: relative, with forward slashes."""
    # latin-1 maps bytes to characters and back one by one, whatever the file's encoding.
    old, new = _lines(before.decode("latin-1")), _lines(after.decode("latin-1"))
    lines = difflib.unified_diff(old, new, "old", "new", n=3)
    text = "".join(line if line.endswith("\n") else f"{line}\n{NO_END}" for line in lines)
    if not text:
        return b""
    body = text.split("\n", 2)[2]
    end = "\t" if " " in name else ""  # the tab says where a name with a blank ends
    head = f"--- a/{name}{end}\n+++ b/{name}{end}\n"
    return head.encode("utf-8", "surrogateescape") + body.encode("latin-1")


def changed(text: bytes) -> tuple[int, int]:
    """Lines added and removed by a diff of one file."""
    lines = text.split(b"\n")[2:]
    return sum(line.startswith(b"+") for line in lines), sum(line.startswith(b"-") for line in lines)


def _lines(text: str) -> Sequence[str]:
    """Lines with their ends: only a line feed ends one, as for git."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
