"""`cpu-affinity`: which machines have cores to choose between, which cores a process gets, and that its children have
all of them."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contexts import CPU_ENVIRONMENT, GPU_ENVIRONMENT, LOADER, context
from msgspec.structs import replace
from torch import nn

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.seams import Refused
from hotlap.levers import _cpus, cpu_affinity
from hotlap.levers._base import Context, Settings
from hotlap.levers._cpus import Machine
from hotlap.levers.cpu_affinity import LEVER
from hotlap.records.run import Environment, Gpu
from hotlap.records.session import LeverUse

LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")


def two_sockets(threads: int = 2, cores: int = 4) -> Machine:
    """Threads of a core lie as Linux numbers them: all first ones, then all second ones."""
    made = [tuple(core + cores * thread for thread in range(threads)) for core in range(cores)]
    near, far = made[: cores // 2], made[cores // 2 :]
    return Machine(tuple(made), {0: frozenset(sum(near, ())), 1: frozenset(sum(far, ()))})


ALIKE = Machine(tuple((cpu,) for cpu in range(8)), {0: frozenset(range(8))})
THREADED = Machine(two_sockets().cores, {0: two_sockets().online})


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets up a machine, and the nodes of its GPUs."""
    for name in (*cpu_affinity.PLACED_BY, "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def set_up(machine: Machine, gpus: tuple[int, ...] = (1,)) -> None:
        monkeypatch.setattr(_cpus, "machine", lambda: machine)
        monkeypatch.setattr(_cpus, "gpu_nodes", lambda: frozenset(gpus))

    return set_up


def where(cuda: bool, active: dict[str, Settings] | None = None, cores: int = 8, **facts: Any) -> Context:
    found = context(cuda, active, **{"threads": 4, **facts})
    return Context(found.diagnosis, found.facts, replace(found.environment, cores=cores), found.active)


def choices(found: Context) -> list[str]:
    return [settings["cores"] for settings in LEVER.variants(found)]


# what the system tells


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """Two sockets of two cores with two threads each, numbered as by some BIOSes; a GPU near the second."""
    write(tmp_path, "devices/system/cpu/online", "0-7")
    for cpu in range(8):
        first = cpu - cpu % 2
        write(tmp_path, f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{first}-{first + 1}")
    write(tmp_path, "devices/system/node/node0/cpulist", "0-3")
    write(tmp_path, "devices/system/node/node1/cpulist", "4-5,6-7")
    write(tmp_path, "devices/system/node/node2/cpulist", "")  # memory alone
    write(tmp_path, "devices/system/node/possible", "0-2")
    for device, vendor, kind, node in (
        ("0000:17:00.0", "0x10de", "0x030200", "1"),
        ("0000:18:00.0", "0x10de", "0x068000", "0"),  # a switch
        ("0000:19:00.0", "0x8086", "0x030000", "0"),
        ("0000:1a:00.0", "0x10de", "0x030000", "-1"),
    ):
        for name, text in (("vendor", vendor), ("class", kind), ("numa_node", node)):
            write(tmp_path, f"bus/pci/devices/{device}/{name}", text)
    return str(tmp_path)


def test_cores_and_nodes_are_read_from_sysfs(sysfs: str) -> None:
    found = _cpus.machine(sysfs)
    assert found.cores == ((0, 1), (2, 3), (4, 5), (6, 7)) and found.threaded
    assert found.nodes == {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
    assert found.of_node(1) == ((4, 5), (6, 7)) and found.of_node(7) == ()
    assert _cpus.gpu_nodes(sysfs) == {1}
    assert (_cpus.node_of("0000:17:00.0", sysfs), _cpus.node_of("0000:1a:00.0", sysfs)) == (1, None)


def test_what_the_system_does_not_tell_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, "devices/system/cpu/online", "0,2")
    assert _cpus.machine(str(tmp_path)) == Machine(((0,), (2,)), {})
    assert _cpus.machine(str(tmp_path / "none")) == Machine((), {})
    assert _cpus.gpu_nodes(str(tmp_path)) == frozenset()


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_this_machine_is_read_as_it_is() -> None:
    found = _cpus.machine()
    assert os.sched_getaffinity(0) <= found.online
    assert _cpus.running_on() in found.online


# where it applies


def test_near_the_gpu_first_then_one_thread_of_each_core(on: Any) -> None:
    on(two_sockets())
    found = where(True)
    assert LEVER.applies(found) == (True, "8 hardware threads on 4 cores, 2 NUMA nodes")
    assert choices(found) == ["node", "physical"]
    assert choices(where(False)) == ["physical", "node"]
    on(two_sockets(), gpus=())
    assert choices(found) == ["physical"], "a virtual machine does not tell where its GPU is"
    on(two_sockets(threads=1, cores=8))
    assert choices(found) == ["node"]


def test_it_refuses_where_there_is_nothing_to_choose(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on(ALIKE)
    assert "nothing to choose by" in LEVER.applies(where(True)).why
    on(two_sockets())
    quota = where(True)
    one = Context(quota.diagnosis, quota.facts, replace(quota.environment, cpu_quota=0.5), {})
    mac = Context(quota.diagnosis, quota.facts, replace(quota.environment, os="Darwin"), {})
    refused = {
        "only one core": one,
        "for Linux": mac,
        "was given 4 of 8": where(True, cores=4),
        "no module's forward": where(True, roots=()),
        "16 threads share an operation": where(True, threads=16),
    }
    for why, found in refused.items():
        assert not LEVER.applies(found).yes and why in LEVER.applies(found).why
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert "OMP_PROC_BIND" in LEVER.applies(where(True)).why


def test_threads_that_compute_are_not_crowded_onto_fewer_cores(on: Any) -> None:
    on(two_sockets())
    assert not LEVER.applies(where(False, threads=8)).yes
    assert LEVER.applies(where(False, {"cpu-threads": {"threads": 4}}, threads=8)).yes
    fed = (replace(LOADER, workers=4),)
    assert LEVER.applies(where(True, threads=8, loaders=fed)).yes, "threads of the workers are their own"


def test_ranks_of_a_host_get_a_part_each(on: Any) -> None:
    on(two_sockets(cores=16), gpus=(0, 1))
    gpus = replace(GPU_ENVIRONMENT, cores=32, gpus=(Gpu(name="H", memory_gib=80.0),) * 4)

    def ranks(world: int, cuda: bool = True, machine: Environment = gpus) -> Context:
        found = context(cuda, world=world, threads=1)
        return Context(found.diagnosis, found.facts, machine, {})

    assert LEVER.variants(ranks(16)) == [{"cores": "node", "split": True}, {"cores": "physical", "split": True}]
    assert LEVER.applies(ranks(16)).yes, "on four hosts"
    cpus = replace(CPU_ENVIRONMENT, cores=32)
    assert LEVER.variants(ranks(4, False, cpus)) == [{"cores": "physical", "split": True}]
    assert "too few cores" in LEVER.applies(ranks(16, False, cpus)).why


def test_a_device_that_the_host_is_ahead_of_hides_what_it_wins(on: Any) -> None:
    on(two_sockets())
    waits = where(True)
    ahead = Context(replace(waits.diagnosis, clock="device"), waits.facts, waits.environment, {})
    fed = where(True, {"loader-workers": {"workers": 4}})
    assert LEVER.share(waits) == pytest.approx(0.095)
    assert LEVER.share(ahead) == pytest.approx(0.04)
    assert LEVER.share(fed) < LEVER.share(waits)


def test_settings_of_a_recipe_are_checked_against_the_machine(on: Any) -> None:
    assert LEVER.check({"cores": "node", "split": True}) is None
    assert LEVER.check({}) and LEVER.check({"cores": ["node"]})
    assert LEVER.check({"cores": "node", "split": False}) and LEVER.check({"cores": "node", "rank": 1})
    for machine in (ALIKE, Machine((), {})):
        on(machine)
        assert "NUMA nodes" in (LEVER.fits(GPU_ENVIRONMENT, {"cores": "node"}) or "")
        assert "hardware threads" in (LEVER.fits(GPU_ENVIRONMENT, {"cores": "physical"}) or "")
    on(two_sockets())
    assert all(LEVER.fits(GPU_ENVIRONMENT, {"cores": cores}) is None for cores in cpu_affinity.CHOICES)


# which cores a process gets

PCI = {0: 0x17, 1: 0x18, 2: 0xAF, 3: 0xB0}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fake GPUs, the first half of them near node 0."""

    def properties(device: Any) -> Any:
        index = device if isinstance(device, int) else device.index
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=PCI[index], pci_device_id=0)

    def set_up(count: int) -> None:
        nodes = {f"0000:{bus:02x}:00.0": index // max(1, count // 2) for index, bus in PCI.items()}
        monkeypatch.setattr(_cpus, "node_of", nodes.get)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return set_up


def own(cores: str, gpu: int = 0, split: bool = False, here: Machine | None = None) -> set[int]:
    settings: Settings = {"cores": cores, **({"split": True} if split else {})}
    return set(cpu_affinity._own(torch.device("cuda", gpu), settings, here or two_sockets()))


def test_a_process_gets_the_cores_near_its_gpu(gpus: Any, on: Any) -> None:
    gpus(4)
    assert [own("node", gpu) for gpu in range(4)] == [{0, 1, 4, 5}] * 2 + [{2, 3, 6, 7}] * 2
    assert own("physical", 3) == {0, 1, 2, 3}


@pytest.mark.parametrize("visible", [4, 1])
def test_ranks_share_out_the_cores(visible: int, gpus: Any, on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each rank sees its own GPU only, which of the others are near the same node is not known."""
    gpus(visible)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    here, found = two_sockets(cores=16), []
    for cores in ("node", "physical"):
        parts = []
        for rank in range(4):
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            parts.append(own(cores, rank if visible == 4 else 0, split=True, here=here))
        assert all(parts) and len(set().union(*parts)) == sum(map(len, parts)), "no core twice"
        found.append(parts)
    assert found[1] == [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}]
    assert found[0][0] == ({0, 1, 2, 3, 16, 17, 18, 19} if visible == 4 else {0, 1, 16, 17})


def test_it_refuses_in_process_where_its_part_can_t_be_known(
    gpus: Any, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(4)
    with pytest.raises(Refused, match="which of the ranks"):
        own("node", split=True)
    monkeypatch.setattr(_cpus, "node_of", lambda device: None)
    with pytest.raises(Refused, match="near to"):
        own("node")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    with pytest.raises(Refused, match="near to"):
        own("node")


# a process that stays


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The cores of this process, as one core of several threads; afterwards it has all of them again."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    monkeypatch.setattr(cpu_affinity, "FEWEST", 1)
    monkeypatch.setattr(BaseProcess, "start", BaseProcess.start)
    yield cores
    for thread in tasks():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


def tasks() -> list[int]:
    """The threads of this process."""
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def install(settings: Settings) -> Any:
    """What the agent calls before the first forward of a module."""
    asked: list[Any] = []
    LEVER.install(SimpleNamespace(on_root=asked.append), settings)  # type: ignore[arg-type]
    (stay,) = asked
    return stay


@LINUX
def test_all_its_threads_stay_and_its_children_have_all_cores(given: list[int], on: Any) -> None:
    half = len(given) // 2
    if len(given) % 2:
        pytest.skip("an odd number of cores")
    on(Machine(tuple(zip(given[:half], given[half:], strict=True)), {0: frozenset(given)}))
    threads, stay = torch.get_num_threads(), install({"cores": "physical"})
    assert os.sched_getaffinity(0) == set(given), "not before the first forward"
    for _ in range(2):  # two modules
        stay(nn.Linear(2, 2))
    assert {tuple(os.sched_getaffinity(task)) for task in tasks()} == {tuple(given[:half])}
    assert torch.get_num_threads() == threads
    for method in ("fork", "spawn"):
        processes = multiprocessing.get_context(method)
        there, here = processes.Pipe()
        child = processes.Process(target=_tell, args=(here,))
        child.start()
        assert there.poll(60) and there.recv() == set(given), method
        child.join()
        assert os.sched_getaffinity(0) == set(given[:half])


def _tell(pipe: Any) -> None:
    pipe.send(os.sched_getaffinity(0))


@LINUX
def test_a_process_that_was_placed_already_is_left_alone(given: list[int], on: Any) -> None:
    on(Machine(tuple((cpu,) for cpu in [*given, 9999]), {}))
    with pytest.raises(Refused, match="already"):
        install({"cores": "physical"})(nn.Linear(2, 2))
    on(Machine(tuple((cpu,) for cpu in given), {}))
    with pytest.raises(Refused, match=f"{len(given)} of {len(given)}"):
        install({"cores": "physical"})(nn.Linear(2, 2))
    assert os.sched_getaffinity(0) == set(given)


AS_ONE_CORE = (
    "import os; from hotlap.levers import _cpus, cpu_affinity; cpu_affinity.FEWEST = 1; "
    "here = tuple(sorted(os.sched_getaffinity(0))); _cpus.machine = lambda: _cpus.Machine((here,), {})"
)


@LINUX
@pytest.mark.parametrize("before", ["", AS_ONE_CORE])
def test_a_script_with_workers_computes_the_same(before: str, runner: Runner) -> None:
    """On this machine, whether it has something to choose between or not, and on one that has."""
    if before and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    lever = LeverUse("cpu-affinity", {"cores": "physical"})
    ran = runner.forked("epochs.py", "--workers", "1", before=before, levers=(lever,))
    check_same(ran, runner.bare("epochs.py", "--workers", "1"))
    if before:
        check_clean(ran)
        assert '{"lever": "cpu-affinity"}' in (ran.ranks[0] / "levers.jsonl").read_text()
