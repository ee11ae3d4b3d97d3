"""The process that trains stays on some of the machine's cores: those that share memory with its GPU, or one hardware
thread of each core.

The system moves threads between cores as it likes. One that launches kernels from the far socket reaches the GPU, and
its own memory, over the link between the two; two that share an operation may come to share a core. torch says of its
own binding (torch.numa, `torchrun --numa-binding`) that it typically wins 1 to 10%.

The number of threads stays, and so does all that is computed. It is done before the first forward, when the device is
known. Of the ranks on a host each gets a part. Processes that it starts with multiprocessing, such as a loader's
workers, run on all cores as before; those that it starts otherwise (a compiler's) run on its own.
"""

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from . import _cpus
from ._base import Applies, Context, Lever, Settings, unknown
from .loader_workers import workers_in_use

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

CHOICES: Final = ("node", "physical")
FEWEST: Final = 2
"""Hardware threads that a process is left with: it has threads beside the one that trains."""
SHARE: Final = 0.1
"""Of the time that the host's work takes, at most: what torch says of its own binding."""
PLACED_BY: Final = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")


class CpuAffinity(Lever):
    name = "cpu-affinity"
    meaning = "the process that trains stays on the cores near its GPU, or on one hardware thread of each core"
    risk = "exact"

    def applies(self, context: Context) -> Applies:
        why = _why_not(context)
        if why is not None:
            return Applies(False, why)
        here = _machine(context.environment)
        lie = f"{len(here.online)} hardware threads on {len(here.cores)} cores, {len(here.nodes)} NUMA nodes"
        return Applies(True, lie)

    def variants(self, context: Context) -> list[Settings]:
        split = {"split": True} if context.facts.world > 1 else {}
        choices = _choices(context) if _machine(context.environment).cores else CHOICES[1:]
        return [{"cores": cores, **split} for cores in choices]

    def share(self, context: Context) -> float:
        """Where the host runs ahead of the device, only what the device waits for all the same."""
        phases = ["h2d"] if workers_in_use(context) else ["h2d", "data"]
        if not context.cuda or context.diagnosis.clock == "host":
            phases += ["forward", "backward", "optimizer"]
        return SHARE * context.share_of(*phases)

    def check(self, settings: Mapping[str, Any]) -> str | None:
        if settings.get("cores") not in CHOICES:
            return f"cores must be one of {', '.join(CHOICES)}, not {settings.get('cores')!r}"
        if settings.get("split", True) is not True:
            return f"split must be true where it is given, not {settings['split']!r}"
        return unknown(settings, ("cores", "split"))

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        here = _machine(environment)
        if settings["cores"] == "node":
            return None if len(here.nodes) > 1 else "this machine is not known to have several NUMA nodes"
        return None if here.threaded else "no core of this machine is known to run several hardware threads"

    def install(self, seams: "Seams", settings: Settings) -> None:
        done: list[bool] = []

        def stay(module: Any) -> None:
            if not done:
                done.append(True)
                _stay(next(module.parameters()).device, settings)

        seams.on_root(stay)

    def source(self, settings: Settings) -> str:
        if "split" in settings:
            return "# in place of torchrun ...:\n# torchrun --numa-binding=exclusive ..."
        if settings.get("cores") == "node":
            return (
                "# in the shell, with the node in /sys/bus/pci/devices/<the GPU's>/numa_node:\n"
                "# numactl --cpunodebind=<node> python train.py"
            )
        return (
            "# the first of each /sys/devices/system/cpu/cpu*/topology/thread_siblings_list:\n"
            "os.sched_setaffinity(0, one_thread_of_each_core)"
        )


def _why_not(context: Context) -> str | None:
    """What speaks against it; None if nothing does."""
    machine, here = context.environment, _machine(context.environment)
    if not context.facts.roots:
        return "no module's forward was seen"
    if not here.cores:
        return "the system does not tell how its cores lie: it is for Linux"
    if machine.usable_cores == 1:
        return "there is only one core"
    if machine.cores < len(here.online):
        return f"the command was given {machine.cores} of {len(here.online)} hardware threads"
    if own := sorted(name for name in PLACED_BY if name in os.environ):
        return f"the environment places threads itself: {', '.join(own)}"
    if not _offered(context):
        return "there is nothing to choose by: no core runs several hardware threads, and no NUMA node is nearer"
    if not _choices(context):
        return f"too few cores: {_threads(context)} threads share an operation, in {_ranks(context)} processes"
    return None


def _offered(context: Context) -> list[str]:
    """The choices between cores that this machine has, most promising first. Which node another rank of a model on the
    CPU is on can't be known."""
    here = _machine(context.environment)
    nearer = bool(_cpus.gpu_nodes()) if context.cuda else context.facts.world == 1
    has = {"node": len(here.nodes) > 1 and nearer, "physical": here.threaded}
    return [cores for cores in (CHOICES if context.cuda else CHOICES[::-1]) if has[cores]]


def _choices(context: Context) -> list[str]:
    """Those of them that leave each process enough."""
    here, ranks = _machine(context.environment), _ranks(context)
    nodes = _cpus.gpu_nodes() if context.cuda else here.nodes.keys()
    on_node = min((len(here.nodes.get(node, ())) for node in nodes), default=0) // -(-ranks // max(1, len(nodes)))
    room = {"node": on_node, "physical": len(here.cores) // ranks}
    return [cores for cores in _offered(context) if room[cores] >= max(FEWEST, _threads(context))]


def _ranks(context: Context) -> int:
    """Processes on this host: those of a model on GPUs have one each."""
    gpus = len(context.environment.gpus)
    return min(context.facts.world, gpus) if context.cuda and gpus else context.facts.world


def _threads(context: Context) -> int:
    """Threads that share an operation and would be crowded on fewer cores: none that count where the model is on a
    device and workers make its batches."""
    if context.cuda and workers_in_use(context):
        return 1
    return int(context.active.get("cpu-threads", {}).get("threads", context.facts.threads))


def _machine(environment: "Environment") -> _cpus.Machine:
    return _cpus.machine() if environment.os.startswith("Linux") else _cpus.Machine((), {})


# in the user's process


def _stay(device: Any, settings: Settings) -> None:
    """Put all threads of this process on their cores. Raises Refused."""
    import torch

    from hotlap.agent.seams import Refused

    here, given = _cpus.machine(), frozenset(os.sched_getaffinity(0))
    if given != here.online:
        raise Refused("this process was given its cores already")
    own = _own(device, settings, here)
    if not FEWEST <= len(own) < len(given):
        raise Refused(f"it would have {len(own)} of {len(given)} hardware threads")
    torch.get_num_threads()  # some runtimes count their cores when they are first asked
    for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208 - pathlib costs the user an import
        with contextlib.suppress(ProcessLookupError):  # it has ended
            if os.sched_getaffinity(thread) == given:  # else it was placed by someone who knows why
                os.sched_setaffinity(thread, own)
    _children_have(given)


def _own(device: Any, settings: Settings, here: _cpus.Machine) -> frozenset[int]:
    """The hardware threads of this process. Raises Refused."""
    from hotlap.agent.seams import Refused

    rank, ranks = _place() if "split" in settings else (0, 1)
    if not ranks:
        raise Refused("the launcher does not say which of the ranks on this host it is")
    if settings["cores"] == "physical":
        return _part([core[:1] for core in here.cores], rank, ranks)
    node = _node(device, here)
    if node is None:
        raise Refused("the system does not tell which cores the device is near to")
    peers = _beside(node, ranks)
    return _part(here.of_node(node), *((peers.index(rank), len(peers)) if rank in peers else (rank, ranks)))


def _part(cores: Sequence[tuple[int, ...]], rank: int, ranks: int) -> frozenset[int]:
    mine = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
    return frozenset(cpu for core in mine for cpu in core)


def _place() -> tuple[int, int]:
    """Which of how many ranks on this host this process is, as torchrun and its like say; of 0 where none does."""
    rank, ranks = (os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    known = rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)
    return (int(rank), int(ranks)) if known else (0, 0)


def _beside(node: int, ranks: int) -> list[int]:
    """The ranks on this host whose GPUs are near a node, if each has the GPU of its number; none if it has not."""
    import torch

    if ranks == 1 or torch.cuda.device_count() < ranks:
        return []
    return [rank for rank in range(ranks) if _gpu_node(rank) == node]


def _node(device: Any, here: _cpus.Machine) -> int | None:
    """The NUMA node that a GPU is near to; of the CPU that on which this thread runs."""
    if device.type == "cuda":
        return _gpu_node(device)
    cpu = _cpus.running_on()
    return next((node for node, cpus in here.nodes.items() if cpu in cpus), None)


def _gpu_node(device: Any) -> int | None:
    import torch

    gpu = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):  # an older torch
        return None
    return _cpus.node_of(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0")


def _children_have(cores: frozenset[int]) -> None:
    """Processes that are started with multiprocessing from here on run on these cores, whatever their parent's are."""
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    @functools.wraps(start)
    def start_on_all(process: BaseProcess) -> None:
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            start(process)
        finally:
            os.sched_setaffinity(0, own)

    BaseProcess.start = start_on_all  # type: ignore[method-assign,assignment]


LEVER = CpuAffinity()
