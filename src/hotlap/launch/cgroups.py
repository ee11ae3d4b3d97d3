"""Which control groups a process is in, and what they allow it of the processor.

A controller belongs to one hierarchy: to one of version 1 where /proc/PID/cgroup names it in a line, else to that of
version 2, the line `0::PATH`. Where a hierarchy is mounted is in mountinfo (`proc(5)`; `cgroups(7)`); a container sees
the mount of its own group, or with version 1 that of another root, so paths are taken relative to the mount's root.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from hotlap.agent.process_tree import read

DEEPEST: Final = 64
NO_LIMIT: Final = 1 << 53
"""Bytes, from which on a limit is none."""


@dataclass(frozen=True)
class Quota:
    """A limit of processor time. folder: of the group that sets it; cores: what may run in the mean."""

    folder: Path
    cores: float


@dataclass(frozen=True)
class Throttling:
    """Since the group was made. periods: enforced, those in which the group ran; throttled: in which it ran out; ms:
    that it was held, summed over cores."""

    periods: int
    throttled: int
    ms: float


def cpu_quota(pid: int | str = "self", root: Path = Path("/")) -> Quota | None:
    """The tightest limit on a process, the innermost of equal ones; None where there is none, or it can't be known.

    root: where the machine's files are.
    """
    found = [quota for folder in folders("cpu", pid, root) if (quota := quota_of(folder)) is not None]
    return min(found, key=lambda quota: quota.cores, default=None)


def quota_of(folder: Path) -> Quota | None:
    """The limit that a group sets itself: `cpu.max` of version 2 ("max 100000", "400000 100000"), `cpu.cfs_quota_us`
    and `cpu.cfs_period_us` of version 1 (-1: none)."""
    words = [*read(folder / "cpu.max").split(), *read(folder / "cpu.cfs_quota_us").split()]
    words += read(folder / "cpu.cfs_period_us").split()
    try:
        allowed, period = (float(word) for word in words[:2])
    except ValueError:  # "max", or not two numbers
        return None
    cores = allowed / period if allowed > 0 and period > 0 else math.inf
    return Quota(folder, cores) if math.isfinite(cores) else None


def throttling(folder: Path) -> Throttling | None:
    """What `cpu.stat` of a group says: `throttled_usec` in version 2, `throttled_time` (ns) in version 1."""
    counts = dict(re.findall(r"^(\w+) (\d{1,20})$", read(folder / "cpu.stat"), re.MULTILINE))
    try:
        ms = (
            float(counts["throttled_usec"]) / 1e3 if "throttled_usec" in counts else int(counts["throttled_time"]) / 1e6
        )
        return Throttling(int(counts["nr_periods"]), int(counts["nr_throttled"]), ms)
    except KeyError:
        return None


def memory_limit(pid: int | str = "self", root: Path = Path("/")) -> int | None:
    """The tightest limit of memory on a process, bytes: `memory.max` of version 2, `memory.limit_in_bytes` of version 1
    (a number near 2**63: none); None where there is none, or it can't be known."""
    texts = (read(at / name) for at in folders("memory", pid, root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min((limit for text in texts if (limit := _count(text)) is not None and limit < NO_LIMIT), default=None)


def oom_kills(pid: int | str = "self", root: Path = Path("/")) -> int | None:
    """Processes of the group that the kernel has killed for lack of memory: `oom_kill` in `memory.events` of version 2,
    in `memory.oom_control` of version 1; None where that can't be known."""
    at = next(iter(folders("memory", pid, root)), None)
    texts = (read(at / name) for name in ("memory.events", "memory.oom_control")) if at is not None else ()
    found = (re.search(r"^oom_kill (\d{1,15})$", text, re.MULTILINE) for text in texts)
    return next((int(one[1]) for one in found if one is not None), None)


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,20}\s*", text) else None


def folders(controller: str, pid: int | str = "self", root: Path = Path("/")) -> list[Path]:
    """The folders of a process's group of a controller, from its own outwards, as far as they can be seen."""
    version, path = _membership(read(root / "proc" / str(pid) / "cgroup"), controller)
    inside = PurePosixPath(path)
    mounts = list(_mounts(read(root / "proc" / "self" / "mountinfo"), version, controller))
    if not mounts:
        return []
    top, base = next((mount for mount in mounts if inside.is_relative_to(mount[0])), mounts[0])
    seen = inside.is_relative_to(top) and ".." not in inside.parts  # a group outside of this namespace is `/../x`
    below = inside.relative_to(top) if seen else PurePosixPath()
    at = root / str(base).lstrip("/")
    return [at / part for part in (below, *below.parents)[:DEEPEST]]


def _membership(text: str, controller: str) -> tuple[int, str]:
    """Version of the controller's hierarchy, and the path of the group in it; version 0 where there is none."""
    rows = [[*line.split(":", 2), "", ""][:3] for line in text.splitlines()]
    for _, names, path in rows:
        if controller in names.split(","):
            return 1, path or "/"
    return next(((2, path) for number, names, path in rows if number == "0" and not names and path), (0, "/"))


def _mounts(text: str, version: int, controller: str) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Root and mount point of the hierarchy, from mountinfo:
    `32 31 0:29 ROOT MOUNT_POINT rw,relatime [tags] - cgroup SOURCE rw,cpu,cpuacct`."""
    for line in text.splitlines():
        before, found, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not found or len(fields) < 6 or len(kind) < 3:
            continue
        first = version == 1 and kind[0] == "cgroup" and controller in kind[2].split(",")
        if first or (version == 2 and kind[0] == "cgroup2"):
            yield PurePosixPath(_unescaped(fields[3])), PurePosixPath(_unescaped(fields[4]))


def _unescaped(path: str) -> str:
    """Spaces are written as `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
