"""The environment record: true of this machine, and silent about secrets."""

import os
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import psutil
import pytest

from hotlap.launch import environment as module
from hotlap.launch.environment import (
    GIB,
    cgroup_limits,
    cpu_model,
    environment,
    git_state,
    memory_gib,
    nvidia,
    variables,
)
from hotlap.records.run import Environment, Gpu


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular."""
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ | names, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_environment_is_of_this_machine(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert found.python == f"{sys.version.split()[0]} ({sys.executable})"
    assert found.cores >= 1 and 0 < found.memory_gib <= psutil.virtual_memory().total / GIB + 0.01
    assert found.cpu and found.os and found.git_commit is None and found.git_dirty is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Environment) == found


def test_memory_is_at_most_the_lowest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cgroup_limits", lambda *_: [2.0 * GIB, 1e9 * GIB])
    assert memory_gib() == 2.0
    monkeypatch.setattr(module, "cgroup_limits", lambda *_: [])
    assert memory_gib() == psutil.virtual_memory().total / GIB


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_cores_are_those_the_process_may_use() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from hotlap.launch.environment import cores; print(cores())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_cpu_model(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel name\t: other\n"
    assert cpu_model(write(tmp_path / "cpuinfo", text)) == "AMD EPYC 9R14"
    assert cpu_model(write(tmp_path / "empty", "Processor: x\n"))
    assert cpu_model(tmp_path / "absent")


def in_group(root: Path, membership: str, mount: str) -> Path:
    """A machine's files; a process's groups and where they are mounted (`test_cgroups.py` has more)."""
    write(root / "proc/self/cgroup", membership)
    kind = "cgroup2 x rw" if mount == "/v2" else "cgroup x rw,memory"
    write(root / "proc/self/mountinfo", f"36 25 0:31 / {mount} rw - {kind}\n")
    return root


def test_cgroup_version_2_takes_every_limit_above(tmp_path: Path) -> None:
    root = in_group(tmp_path, "0::/job/task\n", "/v2")
    write(root / "v2/job/task/memory.max", "max\n")
    write(root / "v2/job/memory.max", "4000\n")
    write(root / "v2/memory.max", "9000\n")
    assert cgroup_limits(root) == [4000.0, 9000.0]


def test_cgroup_version_1_without_a_limit_has_none(tmp_path: Path) -> None:
    root = in_group(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/a:b\n0::/\n", "/memory")
    write(root / "memory/a:b/memory.limit_in_bytes", "5000\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limits(root) == [5000.0]


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/../../x\n", "0:\n"])
def test_strange_cgroups_set_no_limit(tmp_path: Path, text: str) -> None:
    assert cgroup_limits(in_group(tmp_path, text, "/v2")) == []
    assert cgroup_limits(tmp_path / "absent") == []


def test_variables_are_those_that_matter_and_no_secrets() -> None:
    kept = {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "MKL_X": "1",
        "KMP_BLOCKTIME": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_LOGS": "x",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp",
        "HF_HUB_OFFLINE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTHONHASHSEED": "0",
    }
    secret = {
        "TORCH_API_KEY": "s",
        "NCCL_TOKEN": "s",
        "CUDA_secret": "s",
        "PYTORCH_PASSWORD": "s",
        "OMP_PassPhrase": "s",
        "TORCHINDUCTOR_REDIS_URL": "redis://user:s@host:1",
        "TORCH_CREDENTIALS": "s",
    }
    other = {"HOME": "/root", "HF_TOKEN": "s", "MY_CUDA_X": "1", "HF_HUB_OFFLINE_X": "1"}
    assert variables(kept | secret | other) == kept
    assert variables({"TORCH_LOGS": "x" * 500}) == {"TORCH_LOGS": "x" * 200}


def test_git_state(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == (None, None)
    write(tmp_path / "a", "1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    write(tmp_path / "untracked", "1")
    assert git_state(tmp_path) == (commit, False)
    write(tmp_path / "a", "2")
    assert git_state(tmp_path) == (commit, True)


def test_git_that_is_absent_or_slow_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = write(tmp_path / "bin/git", "#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    monkeypatch.setattr(module, "GIT_TIMEOUT_S", 0.05)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert git_state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == (None, None)
    assert git_state(tmp_path / "absent") == (None, None)


class NVMLError(Exception):
    """Stands for pynvml's."""


def fake_nvml(**changes) -> types.SimpleNamespace:
    """A pynvml with two GPUs."""
    names = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 * GIB),
        "nvmlDeviceGetName": lambda handle: "H100" if handle else "A100",
        "nvmlSystemGetDriverVersion": lambda: "550.54",
    }
    return types.SimpleNamespace(**(names | changes))


def refuse(*_: object) -> None:
    raise NVMLError


def test_gpus_as_nvml_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert nvidia() == ("550.54", (Gpu(name="A100", memory_gib=80.0), Gpu(name="H100", memory_gib=80.0)))


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_no_gpu_where_nvml_fails(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**{broken: refuse, "nvmlShutdown": refuse}))
    assert nvidia() == (None, ())


def test_no_gpu_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia() == (None, ())
