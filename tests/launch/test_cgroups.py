"""CPU quotas of control groups as systems lay them out, and the counters that tell whether a command got its cores."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.launch.cgroups import (
    Quota,
    Throttling,
    cpu_quota,
    folders,
    memory_limit,
    oom_kills,
    quota_of,
    throttling,
)
from hotlap.launch.starvation import Starvation, per_core, waited_ms

V2 = "36 25 0:31 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
ROOT = "25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct ro,relatime master:13 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 {top} /sys/fs/cgroup/memory ro,relatime master:14 - cgroup cgroup rw,memory\n"
)
MEMBER_V1 = "12:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::{path}\n"
STAT_V2 = (
    "usage_usec 9000000\nuser_usec 8000000\nsystem_usec 1000000\n"
    "nr_periods 200\nnr_throttled 62\nthrottled_usec 1500250\n"
)
STAT_V1 = "nr_periods 40\nnr_throttled 10\nthrottled_time 2500000000\nnr_bursts 0\nburst_time 0\n"


class Machine:
    """Files of a machine under a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, files: dict[str, str]) -> "Machine":
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def in_group(self, membership: str, mounts: str) -> "Machine":
        return self.put({"proc/self/cgroup": membership, "proc/self/mountinfo": ROOT + mounts})

    def seen(self) -> list[str]:
        return [str(folder.relative_to(self.root)) for folder in folders("cpu", "self", self.root)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# where the groups are


def test_version_2_at_the_root_of_a_machine_has_no_limit(machine: Machine) -> None:
    machine.in_group("0::/\n", V2).put({"sys/fs/cgroup/cpu.stat": "usage_usec 1\n"})
    assert machine.seen() == ["sys/fs/cgroup"]
    assert cpu_quota("self", machine.root) is None
    assert throttling(machine.root / "sys/fs/cgroup") is None


def test_version_2_of_a_container_shows_its_own_group_as_the_root(machine: Machine) -> None:
    """Docker and Kubernetes with a namespace of groups."""
    machine.in_group("0::/\n", V2)
    machine.put({"sys/fs/cgroup/cpu.max": "400000 100000\n", "sys/fs/cgroup/cpu.stat": STAT_V2})
    assert cpu_quota("self", machine.root) == Quota(machine.root / "sys/fs/cgroup", 4.0)
    assert throttling(machine.root / "sys/fs/cgroup") == Throttling(200, 62, 1500.25)


def test_version_2_nested_takes_the_tightest_of_all_levels(machine: Machine) -> None:
    base = "sys/fs/cgroup/kubepods.slice/pod7.slice"
    machine.in_group("0::/kubepods.slice/pod7.slice/task.scope\n", V2)
    machine.put({f"{base}/task.scope/cpu.max": "max 100000\n", f"{base}/cpu.max": "250000 100000\n"})
    machine.put({"sys/fs/cgroup/kubepods.slice/cpu.max": "1600000 100000\n"})
    assert machine.seen()[0] == f"{base}/task.scope" and machine.seen()[-1] == "sys/fs/cgroup"
    assert cpu_quota("self", machine.root) == Quota(machine.root / base, 2.5)
    machine.put({f"{base}/task.scope/cpu.max": "125000 50000\n"})
    found = cpu_quota("self", machine.root)
    assert found is not None and found.folder.name == "task.scope"  # the innermost of equals


def test_version_1_of_a_container_without_a_namespace(machine: Machine) -> None:
    """/proc/self/cgroup has the path on the host; the mount begins there."""
    machine.in_group(MEMBER_V1.format(path="/docker/4f2"), V1.format(top="/docker/4f2"))
    folder = "sys/fs/cgroup/cpu,cpuacct"
    machine.put({f"{folder}/cpu.cfs_quota_us": "150000\n", f"{folder}/cpu.cfs_period_us": "100000\n"})
    machine.put({f"{folder}/cpu.stat": STAT_V1})
    assert machine.seen() == [folder]
    assert cpu_quota("self", machine.root) == Quota(machine.root / folder, 1.5)
    assert throttling(machine.root / folder) == Throttling(40, 10, 2500.0)


def test_version_1_without_a_limit(machine: Machine) -> None:
    machine.in_group(MEMBER_V1.format(path="/user.slice"), V1.format(top="/"))
    folder = "sys/fs/cgroup/cpu,cpuacct/user.slice"
    machine.put({f"{folder}/cpu.cfs_quota_us": "-1\n", f"{folder}/cpu.cfs_period_us": "100000\n"})
    assert machine.seen() == [folder, "sys/fs/cgroup/cpu,cpuacct"]
    assert cpu_quota("self", machine.root) is None


def test_hybrid_keeps_the_processor_in_version_1(machine: Machine) -> None:
    """systemd's hybrid layout: version 2 is mounted too, without the controller."""
    unified = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    machine.in_group(MEMBER_V1.format(path="/a"), unified + V1.format(top="/"))
    machine.put({"sys/fs/cgroup/unified/a/cpu.max": "100000 100000\n"})
    folder = "sys/fs/cgroup/cpu,cpuacct/a"
    machine.put({f"{folder}/cpu.cfs_quota_us": "300000", f"{folder}/cpu.cfs_period_us": "100000"})
    assert cpu_quota("self", machine.root) == Quota(machine.root / folder, 3.0)


def test_a_group_outside_of_the_namespace_is_looked_for_at_the_mount(machine: Machine) -> None:
    machine.in_group("0::/../../other\n", V2).put({"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert machine.seen() == ["sys/fs/cgroup"]


def test_a_mount_point_with_a_space(machine: Machine) -> None:
    machine.in_group("0::/\n", V2.replace("/sys/fs/cgroup", r"/my\040groups"))
    assert machine.seen() == ["my groups"]


@pytest.mark.parametrize(
    ("membership", "mounts"),
    [
        ("", ""),
        ("0::/x\n", ""),
        ("", V2),
        ("\x00\xff:::\n::\n0\n", "garbage - \n - - cgroup2\n1 2 3\n"),
        ("4:cpu:/x\n", V2),
    ],
)
def test_what_can_not_be_known_is_no_limit(machine: Machine, membership: str, mounts: str) -> None:
    assert cpu_quota("self", machine.in_group(membership, mounts).root) is None
    assert cpu_quota("self", machine.root / "nothing") is None


@pytest.mark.parametrize(
    "text", ["", "max", "x y", "100000", "-1 100000", "0 100000", "100000 0", "nan 1", "inf 1", "1e999 1"]
)
def test_quotas_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_of(tmp_path) is None


@pytest.mark.parametrize("text", ["", "nr_periods 4\n", STAT_V1.replace("40", "x"), "\x00" * 99, "nr_periods\n"])
def test_throttling_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert throttling(tmp_path) is None


# counters

PROC_STAT = """cpu  40 4 20 1000 5 1 2 30 0 0
cpu0 10 1 5 500 1 1 0 10 7 0
cpu1 30 3 15 500 4 0 2 20 0 0
cpu2 900 0 0 0
intr 12345 0 0
procs_running 9
procs_blocked 0
"""


def test_cores_of_proc_stat() -> None:
    assert per_core(PROC_STAT) == [(0, [10, 1, 5, 500, 1, 1, 0, 10, 7, 0]), (1, [30, 3, 15, 500, 4, 0, 2, 20, 0, 0])]
    assert per_core("cpu0 x\ncpu1\n\x00") == []


def process(pid: int, waited: int) -> dict[str, str]:
    """Files of /proc/PID."""
    return {f"proc/{pid}/schedstat": f"77000000 {waited} 12\n"}


def test_the_wait_of_a_process(machine: Machine) -> None:
    machine.put(process(7, 2_500_000))
    assert waited_ms(machine.root / "proc/7") == 2.5
    machine.put({"proc/7/schedstat": "77000000\n"})
    assert waited_ms(machine.root / "proc/7") is None and waited_ms(machine.root / "proc/8") is None


def test_samples_hold_what_was_added_since(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes count from where they were first seen, until they are gone; a number that is used again counts anew."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    machine.in_group("0::/\n", V2).put({"proc/41/cgroup": "0::/\n", "proc/stat": PROC_STAT})
    machine.put({"sys/fs/cgroup/cpu.max": "400000 100000\n", "sys/fs/cgroup/cpu.stat": STAT_V2})
    machine.put(process(41, 10**9))
    counted = Starvation(41, machine.root)
    first = counted.sample([41, 42])
    assert (first.periods, first.throttled, first.throttled_ms) == (200, 62, 1500.25)
    assert (first.busy_ms, first.steal_ms, first.running) == (500.0, 200.0, 8)
    assert first.waited_ms == 0.0
    machine.put(process(41, 10**9 + 3_000_000) | process(42, 9_000_000))
    second = counted.sample([41, 42])
    assert second.waited_ms == 3.0
    machine.put(process(42, 10_000_000) | process(41, 5))
    third = counted.sample([41, 42])
    assert third.waited_ms == 4.0
    assert counted.sample([]).waited_ms == 4.0


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = Starvation(2**22 + 1, tmp_path).sample([1, 2**22 + 1])
    assert (found.periods, found.throttled_ms, found.busy_ms, found.steal_ms, found.running) == (None,) * 5
    assert found.waited_ms == 0.0


def test_this_machine_answers_without_an_error() -> None:
    Starvation(os.getpid()).sample([os.getpid(), 1])


# a real group, where one can be made

SPIN = "import time\nend = time.perf_counter() + {}\nwhile time.perf_counter() < end: pass"


@pytest.fixture
def limited() -> Iterator[Path]:
    """A group of this machine's below our own with a fifth of a core; skipped where none can be made."""
    own = folders("cpu")
    if not own:
        pytest.skip("no control group of the processor can be seen")
    group = own[0] / f"hotlap-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}")
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("20000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("20000")
        yield group
    except OSError as error:
        pytest.skip(f"no quota can be set: {error.strerror}")
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:  # a process that ended may still be in it for a moment
                time.sleep(0.02)


def test_a_quota_of_this_machine_is_seen_to_run_out(limited: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "input();" + "exec(" + repr(SPIN.format(0.7)) + ")"], stdin=subprocess.PIPE
    )
    try:
        (limited / "cgroup.procs").write_text(str(child.pid))
        quota = cpu_quota(child.pid)
        assert quota is not None and quota.folder == limited and quota.cores == pytest.approx(0.2)
        counted = Starvation(child.pid)
        before = counted.sample([child.pid])
        child.communicate(b"\n", timeout=30)
        after = counted.sample([child.pid])
    except OSError as error:
        pytest.skip(f"no process can be put there: {error.strerror}")
    finally:
        child.kill()
        child.wait()
    assert before.throttled is not None and after.throttled is not None and after.throttled > before.throttled
    assert (after.throttled_ms or 0) > (before.throttled_ms or 0)


def test_memory_of_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path).in_group("0::/job/step\n", V2)
    assert memory_limit(root=tmp_path) is None and oom_kills(root=tmp_path) is None
    machine.put({
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/memory.max": "8589934592\n",
        "sys/fs/cgroup/memory.max": "17179869184\n",
        "sys/fs/cgroup/job/step/memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n",
        "sys/fs/cgroup/job/memory.events": "oom_kill 7\n",
    })  # fmt: skip
    assert memory_limit(root=tmp_path) == 8 << 30 and oom_kills(root=tmp_path) == 1


def test_memory_of_version_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path).in_group(MEMBER_V1.format(path="/job"), V1.format(top="/"))
    here = "sys/fs/cgroup/memory/job/"
    machine.put({
        f"{here}memory.limit_in_bytes": "4294967296\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{here}memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    })  # fmt: skip
    assert memory_limit(root=tmp_path) == 4 << 30 and oom_kills(root=tmp_path) == 3
    machine.put({f"{here}memory.limit_in_bytes": "no number\n", f"{here}memory.oom_control": "oom_kill -1\n"})
    assert memory_limit(root=tmp_path) is None and oom_kills(root=tmp_path) is None
