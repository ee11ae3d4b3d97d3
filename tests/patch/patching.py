"""A project that was patched in memory, and settings for every lever that has a rule."""

from collections.abc import Callable
from typing import Any

from hotlap.records.patch import NotWritten, Written
from hotlap.source.project import Project

SETTINGS: dict[str, dict[str, Any]] = {
    "activation-budget": {"budget": 0.5},
    "activation-offload": {"least_mib": 1},
    "allocator": {"conf": "expandable_segments:True"},
    "attention": {},
    "batch-size": {"times": 4},
    "bf16-autocast": {},
    "channels-last": {},
    "checkpoint-blocks": {"every": 1},
    "compile": {"mode": "default"},
    "compile-blocks": {"shapes": "automatic"},
    "cpu-threads": {"threads": 4},
    "fused-optimizer": {},
    "host-allocator": {"allocator": "glibc"},
    "loader-workers": {"workers": 4, "prefetch": 2, "pin_memory": True, "persistent": True},
    "tf32": {},
}


class Result:
    """A project patched in memory."""

    def __init__(self, before: Project, after: Project, written: list[Written], refused: list[NotWritten]) -> None:
        self.before, self.after = before, after
        self.written = {item.lever: item for item in written}
        self.refused = {item.lever: item for item in refused}

    def text(self, name: str = "train.py") -> str:
        """A file as it is now."""
        return next(s.data.decode() for s in self.after.sources.values() if s.shown == name)

    def lines(self, name: str = "train.py") -> tuple[list[str], list[str]]:
        """Lines that went and lines that came, stripped."""
        old = next(s.data.decode() for s in self.before.sources.values() if s.shown == name).splitlines()
        new = self.text(name).splitlines()
        return [x.strip() for x in old if x not in new], [x.strip() for x in new if x not in old and x.strip()]


Patcher = Callable[..., Result]
