"""The machine and the source tree of a run, as the parent sees them."""

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from .. import __version__
from ..agent.process_tree import read
from ..records.run import Environment, Gpu
from . import cgroups

GIB: Final = 2**30
GIT_TIMEOUT_S: Final = 2.0
LONGEST_VALUE: Final = 200
UNLIMITED_BYTES: Final = 2**62
"""A cgroup v1 without a limit says 2^63 less a page."""
PREFIXES: Final = ("CUDA_", "NCCL_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "MALLOC_", "LD_PRELOAD")
NAMES: Final = frozenset({"HF_HUB_OFFLINE", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED"})
SECRET: Final = re.compile("KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH")
LOGIN: Final = re.compile(r"://[^/\s]*@")
"""A value such as `redis://user:password@host`."""

HASH: Final = re.compile("[0-9a-f]{40,64}")
PROC: Final = Path("/proc")


def environment(cwd: Path) -> Environment:
    """The environment record of a command that runs in `cwd`. What can't be found out is left unknown."""
    commit, dirty = git_state(cwd)
    driver, gpus = nvidia()
    return Environment(
        hotlap=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        os=platform.platform(),
        host=platform.node() or None,
        cpu=cpu_model(PROC / "cpuinfo"),
        cores=cores(),
        cpu_quota=cpu_quota(),
        memory_gib=round(memory_gib(), 2),
        driver=driver,
        gpus=gpus,
        variables=variables(os.environ),
        git_commit=commit,
        git_dirty=dirty,
    )


def cpu_model(cpuinfo: Path) -> str:
    """The processor's name, "unknown" where the system does not tell."""
    found = re.search(r"^model name\s*:\s*(\S.*)$", read(cpuinfo), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown"


def cores() -> int:
    """Cores that this process, and so the command, may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Cores' worth of time that this process's cgroup, and so the command's, may use; None without a limit."""
    found = cgroups.cpu_quota()
    return max(0.001, round(found.cores, 3)) if found is not None and found.cores < cores() else None


def memory_gib() -> float:
    """Memory that the command may use, GiB: the machine's, or the cgroup's limit where that is lower."""
    return min([float(psutil.virtual_memory().total), *cgroup_limits()]) / GIB


def cgroup_limits(root: Path = Path("/")) -> list[float]:
    """Bytes that the memory cgroup of this process, and those above it, set as a limit, in version 1 or 2.

    root: where the machine's files are.
    """
    groups = cgroups.folders("memory", root=root)
    said = [read(group / name).strip() for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    return [float(limit) for limit in said if limit.isdecimal() and int(limit) < UNLIMITED_BYTES]  # not "max"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how training runs, sorted by name; never one that may hold a secret."""
    return {
        name: value[:LONGEST_VALUE]
        for name, value in sorted(environ.items())
        if (name.startswith(PREFIXES) or name in NAMES) and not SECRET.search(name.upper()) and not LOGIN.search(value)
    }


@contextlib.contextmanager
def open_nvml() -> Iterator[Any]:
    """The module `pynvml`, ready to be asked; None without the `gpu` extra or a driver."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def nvidia() -> tuple[str | None, tuple[Gpu, ...]]:
    """Driver version and GPUs; (None, ()) where NVML does not tell."""
    with open_nvml() as nvml:
        if nvml is None:
            return None, ()
        try:
            gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            return nvml.nvmlSystemGetDriverVersion(), gpus
        except nvml.NVMLError:
            return None, ()


def _gpu(nvml: Any, index: int) -> Gpu:
    """One GPU. Raises NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = float(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Gpu(name=nvml.nvmlDeviceGetName(handle), memory_gib=round(memory / GIB, 2))


def git_state(cwd: Path) -> tuple[str | None, bool | None]:
    """Commit of the source tree, and whether tracked files differ from it; None where git can't tell."""
    commit = _git(cwd, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None, None
    changes = _git(cwd, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), None if changes is None else bool(changes.strip())


def project_of(cwd: Path) -> str:
    """What a folder's project is called: its repository, of which worktrees are part, or else the folder."""
    found = _git(cwd, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if found is None:
        return cwd.name or str(cwd)
    common = Path(found.strip())
    return common.parent.name if common.name == ".git" else common.name.removesuffix(".git")


def commit_time(cwd: Path, commit: str) -> float | None:
    """When a commit was made, in seconds since the epoch; None where the repository at `cwd` does not have it."""
    if not HASH.fullmatch(commit):
        return None
    found = _git(cwd, "rev-list", "--max-count=1", "--timestamp", commit, "--")
    first = (found or "").partition(" ")[0]
    return float(first) if first.isdecimal() else None


def commits_between(cwd: Path, before: str, after: str, most: int) -> list[str]:
    """Short hash and subject of the commits after one up to another, newest first; none where git can't tell."""
    if not (HASH.fullmatch(before) and HASH.fullmatch(after)):
        return []
    told = "--oneline", "--abbrev-commit", f"--max-count={most}"
    return (_git(cwd, "rev-list", *told, f"{before}..{after}", "--") or "").splitlines()


def _git(cwd: Path, *arguments: str) -> str | None:
    """What git prints; None where it is absent, slow or fails. Writes nothing and starts no monitor of the tree's."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
