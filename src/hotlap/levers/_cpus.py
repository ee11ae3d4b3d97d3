"""Not a lever: how the cores of this machine lie beside one another, and near which of them a device is.

From sysfs, as Linux has it: hardware threads that share a core (SMT), cores that share memory (NUMA nodes).
"""

import os
import re
from functools import cache
from typing import Final, NamedTuple

ROOT: Final = "/sys"
CPUS, NODES, DEVICES = "devices/system/cpu", "devices/system/node", "bus/pci/devices"
NVIDIA, DISPLAY = "0x10de", "0x03"
"""Vendor, and how the class of a display or of a 3D controller begins."""


class Machine(NamedTuple):
    """Hardware threads by the system's number. cores: those that share one, in the order of their nodes; nodes: those
    of each NUMA node that has any."""

    cores: tuple[tuple[int, ...], ...]
    nodes: dict[int, frozenset[int]]

    @property
    def online(self) -> frozenset[int]:
        """All of them."""
        return frozenset(cpu for core in self.cores for cpu in core)

    @property
    def threaded(self) -> bool:
        """Whether a core runs several threads."""
        return any(len(core) > 1 for core in self.cores)

    def of_node(self, node: int) -> tuple[tuple[int, ...], ...]:
        """The cores of a node."""
        return tuple(core for core in self.cores if core[0] in self.nodes.get(node, ()))


@cache
def machine(root: str = ROOT) -> Machine:
    """This machine; without cores where the system does not tell."""
    online = numbers(_read(root, CPUS, "online"))
    names = [name for name in _list(root, NODES) if re.fullmatch(r"node\d{1,6}", name)]
    known = {int(name[4:]): numbers(_read(root, NODES, name, "cpulist")) & online for name in names}
    nodes = {node: cpus for node, cpus in sorted(known.items()) if cpus}
    at = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    cores = {tuple(sorted(_siblings(root, cpu) & online | {cpu})) for cpu in online}
    return Machine(tuple(sorted(cores, key=lambda core: (at.get(core[0], -1), core))), nodes)


@cache
def gpu_nodes(root: str = ROOT) -> frozenset[int]:
    """NUMA nodes near which NVIDIA GPUs are; empty where the system, or a virtual machine, does not tell."""
    found = (
        node_of(device, root)
        for device in _list(root, DEVICES)
        if _read(root, DEVICES, device, "vendor") == NVIDIA
        and _read(root, DEVICES, device, "class").startswith(DISPLAY)
    )
    return frozenset(node for node in found if node is not None)


def node_of(device: str, root: str = ROOT) -> int | None:
    """The NUMA node of a PCI device, such as 0000:17:00.0; None where it is not known (the kernel then says -1)."""
    text = _read(root, DEVICES, device, "numa_node")
    return int(text) if text.isdecimal() else None


def numbers(text: str) -> frozenset[int]:
    """Those of a list as the kernel writes it: `0-3,8`."""
    found = re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    return frozenset(cpu for first, last in found for cpu in range(int(first), int(last or first) + 1))


def running_on() -> int | None:
    """The hardware thread that the calling thread runs on; None where the system does not tell."""
    fields = _read("/proc/thread-self/stat").rpartition(")")[2].split()
    return int(fields[36]) if len(fields) > 36 else None


def _siblings(root: str, cpu: int) -> frozenset[int]:
    return numbers(_read(root, CPUS, f"cpu{cpu}", "topology", "thread_siblings_list"))


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:  # noqa: PTH118,PTH123 - pathlib costs the user an import
            return file.read(1 << 16).strip()
    except OSError:
        return ""


def _list(*path: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(*path)))  # noqa: PTH118,PTH208 - as above
    except OSError:
        return []
