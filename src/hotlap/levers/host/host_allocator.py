"""Host memory that the step frees stays with the process instead of going back to the kernel.

By default glibc asks the kernel for every tensor of 32 MiB and more anew, and gives the top of its heap back. The
kernel then clears each page again when it is first touched: a page fault for every 4 KiB, every step. What is kept
instead counts as used by the process, so its memory peak may be higher.
"""

import ctypes.util
import os
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Final

from .._base import Applies, Context, Lever, Settings, one_of

if TYPE_CHECKING:
    from hotlap.records.run import Environment, Facts

ALLOCATORS: Final = ("glibc", "jemalloc")
LEAST_FAULTS: Final = 256
"""Page faults a step (1 MiB in pages of 4 KiB) below which memory is hardly what the kernel is asked for."""
LEAST_SHARE: Final = 0.02
OWN: Final = ("MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES")
KEPT: Final = str(2**40)
"""Bytes at the top of the heap that are kept: more than there are."""


class HostAllocator(Lever):
    """glibc's MALLOC_ variables, or jemalloc by LD_PRELOAD."""

    name = "host-allocator"
    meaning = "host memory that a step frees is kept for the next one instead of going back to Linux"
    causes = {"page-faults": 0, "on-cpu": 0}
    risk = "exact"
    settings = {"allocator": one_of(*ALLOCATORS)}

    def applies(self, context: Context) -> Applies:
        from hotlap.records.durations import ms

        host = context.facts.host
        if host is None:
            return Applies(False, "page faults were not counted")
        if not _glibc(context.environment):
            return Applies(False, "it is for Linux with glibc")
        if own := sorted(name for name in os.environ if name.startswith(OWN)):
            return Applies(False, f"the environment already sets an allocator: {', '.join(own)[:80]}")
        share = self.share(context)
        if host.faults < LEAST_FAULTS:
            return Applies(False, f"only {host.faults:.0f} page faults a step")
        if share < LEAST_SHARE:
            hidden = ", and the device hides it" if context.cuda else ""
            return Applies(False, f"Linux takes only {ms(host.system_ms)} of a step{hidden}")
        return Applies(
            True, f"{host.faults:.0f} page faults a step; Linux takes {ms(host.system_ms)} of it, {share:.0%}"
        )

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return facts.host is None or facts.host.faults < LEAST_FAULTS

    def variants(self, context: Context) -> list[Settings]:
        return [{"allocator": name} for name in ALLOCATORS if name == "glibc" or library(name) is not None]

    def searched(self, context: Context) -> bool:
        return True

    def share(self, context: Context) -> float:
        """Time in the kernel, of all threads: they fault beside each other, so at most that much of the step; where the
        model is on a device, at most what that waits for the host."""
        host = context.facts.host
        if host is None or host.faults < LEAST_FAULTS:
            return 0.0
        hidden = context.cuda and context.diagnosis.bound != "launch"
        waits = context.share_of("data", "h2d", "other") if hidden else 1.0
        return min(0.9, waits, host.system_ms / max(1e-3, context.diagnosis.step_ms))

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if not _glibc(environment):
            return "it is for Linux with glibc"
        if settings["allocator"] != "glibc" and library(settings["allocator"]) is None:
            return f"this machine has no {settings['allocator']}"
        return None

    def environment(self, settings: Settings) -> dict[str, str]:
        if settings["allocator"] == "glibc":
            return {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": KEPT}
        found = library(settings["allocator"])
        if found is None:
            return {}
        preloaded = " ".join(filter(None, (found, os.environ.get("LD_PRELOAD"))))
        return {"LD_PRELOAD": preloaded, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}

    def source(self, settings: Settings) -> str:
        pairs = " ".join(f'{name}="{value}"' for name, value in self.environment(settings).items())
        return f"# before the command, in the shell or the job's file:\n# {pairs} python train.py"


@cache
def library(name: str) -> str | None:
    """The library's name as the dynamic linker finds it; None where it is not installed."""
    return ctypes.util.find_library(name)


def _glibc(environment: "Environment") -> bool:
    """`platform.platform()` ends in the C library's name."""
    return environment.os.startswith("Linux") and "musl" not in environment.os


LEVER = HostAllocator()
