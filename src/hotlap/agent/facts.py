"""What the agent sees of the script, as later decisions need it: loaders, outermost modules, optimizers, the device."""

import operator
import os
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from hotlap.records.phases import PHASES
from hotlap.records.session import Session

from .blocks import form_of, heads, repeated
from .compiled import compiled_functions
from .exchange import Exchange
from .habits import Habits, hooks_of, idle_rows, most_alike, switches
from .host import WARM_STEPS, Cost
from .imported import imported
from .lines import Places
from .loaders import Making, described, hung
from .model_code import ModelCode
from .ops_seen import softmax_seen
from .probe import leaves
from .process_tree import read
from .tokens import INTEGERS
from .torch_internals import BF16_CHECKS, IMPL, Convolution, Dropout, nccl_number
from .updates import parameters_of

if TYPE_CHECKING:
    from .interface import Agent

LOOKED_AT_BATCHES = 4
"""Batches of a loader whose leaves are described and followed to the device."""
MOST_ITEMS = 4096
"""Of a list in such a batch."""


class Script:
    """Collected by the hooks, written as facts.json."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loaders: dict[Any, dict[str, Any]] = {}
        self.roots: dict[int, dict[str, Any]] = {}
        self._modules: dict[int, weakref.ref[Any]] = {}
        self.optimizers: dict[int, dict[str, Any]] = {}
        self.made: dict[int, tuple[str, int, str] | None] = {}
        self.making = Making()
        self.exchange = Exchange()
        self.device = "cpu"
        self.scaling: tuple[int, Any] | None = None
        self._places = Places()
        self.recomputed = self.kept_graphs = self.looked_backwards = 0
        self.habits = Habits()
        self.hung: dict[str, Any] | None = None
        self._inputs: dict[int, list[tuple[Any, ...]]] = {}

    # loaders

    def loader(self, loader: Any, training: bool) -> dict[str, Any]:
        """Describe a loader that is about to be iterated."""
        self.making.followed = True
        workers = _integer(getattr(loader, "num_workers", 0)) or 0
        dataset = getattr(loader, "dataset", None)
        kind = type(dataset)
        size = _integer(getattr(loader, "batch_size", None))
        # Not by identity: a loop may make its loader anew each epoch, at the address of another that is gone.
        key = (kind, workers, size, training)
        known = self.loaders.get(key)
        if known is None:
            context = getattr(loader, "multiprocessing_context", None)
            iterable = isinstance(dataset, torch.utils.data.IterableDataset)
            known = self.loaders[key] = defaultdict(int)  # what is 0 or unknown need not be told
            known |= {
                "dataset": kind.__qualname__,
                "iterable": iterable,
                "workers": workers,
                "batch_size": size,
                "pin_memory": bool(getattr(loader, "pin_memory", False)),
                "persistent": bool(getattr(loader, "persistent_workers", False)),
                "prefetch": _integer(getattr(loader, "prefetch_factor", None)),
                "training": training,
                "context": None if context is None else str(getattr(context, "_name", None) or context),
                **described(loader),
                **_place(kind, "__iter__" if iterable else "__getitem__"),
            }
        known["iterators"] += 1
        if known["iterators"] == 2:
            known["loop"] = self._places.caller()
        return known

    def in_flight(self, inference: bool) -> int:
        """Batches that the loop's loaders make ahead. inference: it only infers."""
        mine = [loader for loader in self.loaders.values() if loader["training"] or inference]
        return max((loader["workers"] * (loader["prefetch"] or 2) for loader in mine), default=0)

    def batch(self, facts: dict[str, Any], batch: Any) -> None:
        """Describe what a loader delivered, the first few times."""
        facts["batches"] += 1
        if facts["batches"] > LOOKED_AT_BATCHES:
            return
        found = list(leaves(batch, most=MOST_ITEMS))
        facts["batch_tensors"] = len(found)
        facts["on_device"] = any(leaf.device.type != "cpu" for leaf in found)
        facts["batch_bytes"] = sum(leaf.numel() * leaf.element_size() for leaf in found if leaf.layout == torch.strided)

    def started(self, facts: dict[str, Any], took_ns: int) -> None:
        """A loader has started worker processes that end with its epoch, in took_ns."""
        if facts["starts"]:
            facts["restarting_ms"] += took_ns / 1e6
            facts["loop"] = self._places.caller()
        facts["starts"] += 1

    @staticmethod
    def refilled(facts: dict[str, Any], took_ns: int) -> None:
        """Their first batch came, after took_ns."""
        if facts["starts"] > 1:
            facts["refilling_ms"] += took_ns / 1e6

    def gave_up(self, iterator: Any) -> None:
        """No batch came of it."""
        asked_ns, iterator._hotlap_asked = iterator._hotlap_asked, None
        if asked_ns is not None:
            self.hung = hung(iterator, asked_ns, self._places) or self.hung

    # losses

    def scaled(self, scaled: Any, loss: Any) -> None:
        """Remember the loss behind a scaled one, until its backward."""
        self.scaling = (id(scaled), loss.detach())

    def unscaled(self, tensor: Any) -> Any:
        """The loss as the script computed it, before a GradScaler. Worth asking where `scaling` is something."""
        known, self.scaling = self.scaling, None
        return known[1] if known is not None and known[0] == id(tensor) else tensor

    # modules

    def root(self, module: Any, training: bool, compiled: bool) -> None:
        """Describe an outermost module. compiled: the script called `module.compile()` itself."""
        parameters = list(module.parameters())
        modules, numbers = list(module.modules()), sum(map(_size, parameters))
        blocks, code = repeated(module), ModelCode(modules)
        compiled = compiled or any(
            _class_in_mro(m, "OptimizedModule") or (m is not module and _compiled_in_place(m)) for m in modules
        )
        compiled = compiled or isinstance(module, torch.jit.ScriptModule)  # which torch.compile leaves as it is
        convolutions = [m for m in modules if isinstance(m, Convolution)]
        four = [m for m in convolutions if isinstance(m, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))]
        sparse = any(getattr(m, "sparse", False) is True for m in modules)
        device = parameters[0].device.type if parameters else "cpu"
        if device not in {"cpu", "meta"}:  # on meta nothing is computed
            self.device = device
        wrapped = isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel))
        kind = type(module.module if wrapped else module)  # what the user calls his model
        facts = self.roots[id(module)] = defaultdict(int)
        facts |= {
            "name": kind.__qualname__,
            "parameters": numbers,
            "modules": len(modules),
            "devices": sorted({str(p.device) for p in parameters}),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
            "conv": len(convolutions),
            "conv_input_4d": bool(four),
            "channels_last": any(map(_in_nhwc, four)),
            "dropout": sum(1 for m in modules if isinstance(m, Dropout) and m.p > 0),
            "sparse": sparse,
            "softmax": code.softmax,
            "sdpa": code.sdpa,
            "constants": code.constants,
            "expert_loop": code.expert_loop,
            "mask_checks": code.mask_checks,
            "shapes_by": code.shapes_by,
            "classes": max((_integer(head.out_features) or 0 for head in heads(module)), default=0),
            "compiled": compiled,
            "autocast": self._autocast(device),
            "training": training,
            "wrapper": type(module).__name__ if hasattr(module, "module") else None,
            "blocks": len(blocks),
            "block_kinds": len({form_of(block) for block in blocks}),
            "block": ", ".join(sorted({type(block).__qualname__ for block in blocks})),
            "hooks": (hooks_of(module), 0),
            "alike": (most_alike(module)[0], 0),
            "double": sum(_size(p) for p in parameters if p.dtype == torch.float64) / max(1, numbers),
            "called": self._places.caller(),
            **_place(kind, "forward"),
        }
        self.exchange.watch(modules, facts)
        self._modules[id(module)] = weakref.ref(module)

    def inputs(self, module: Any, found: Sequence[Any]) -> None:
        """Count the different shapes of a module's inputs, and how often there is one token more than before."""
        tokens = next((tuple(leaf.shape) for leaf in found if leaf.dtype in INTEGERS and leaf.dim() == 2), (0, 0))
        seen = self._inputs.setdefault(id(module), [])
        seen.append((tokens, tuple(leaf.shape for leaf in found)))
        if id(module) in self.roots:
            longer = [(rows, length + 1) == after for ((rows, length), _), (after, _) in pairwise(seen)]
            shapes = len({shapes for _, shapes in seen})
            self.roots[id(module)] |= {"shapes": shapes, "grows": sum(longer) / max(1, len(longer))}

    def handed(self, module: Any, leaves: Sequence[Any]) -> None:
        """What one of its first forwards is handed."""
        facts = self.roots.get(id(module))
        if facts is not None:
            self.habits.handed(module, leaves, facts)

    def forward_ops(self, module: Any, output: Any) -> bool:
        """Note whether a softmax that a module's code has did run in a forward with gradients. Returns whether to look
        at the next one too: another forward may run what this one did not."""
        facts = self.roots[id(module)]
        if not facts["softmax"]:
            return False
        facts["softmax_ran"] = softmax_seen(output, module.parameters())
        return facts["softmax_ran"] is False

    def inside_autocast(self, module: Any, device: str) -> None:
        """The autocast that is on where a module is called, by its dtype: `autocast(dtype=float32)` is none."""
        facts = self.roots.get(id(module))
        if facts is not None:
            facts["autocast"] = self._autocast(device)

    @staticmethod
    def _autocast(device: str) -> str | None:
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return None  # a device that has none, as meta, may not be asked
        return str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    # optimizers

    def optimizer_made(self, optimizer: Any) -> None:
        """It was, by the user's code that led here."""
        self.made[id(optimizer)] = self._places.caller()

    def optimizer(self, optimizer: Any) -> None:
        """Describe an optimizer at its first step, when its gradients exist."""
        if id(optimizer) in self.optimizers:
            return
        parameters = [p for g in optimizer.param_groups for p in g["params"] if isinstance(p, torch.Tensor)]
        idle, matrix = idle_rows(parameters)
        self.habits.switches |= {*switches()}
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        kind = type(optimizer)
        if any(p.is_cuda for p in parameters):
            self.device = "cuda"
        self.optimizers[id(optimizer)] = {
            "name": kind.__qualname__,
            "builtin": kind.__module__.startswith("torch.optim"),
            "tensors": len(parameters),
            "fused": _flag(group.get("fused")),
            "capturable": _flag(group.get("capturable")),
            "foreach": _flag(group.get("foreach", False)),
            "groups": len(optimizer.param_groups),
            "settings": 0,
            "differ": [],
            "made": self.made.get(id(optimizer)),
            "stepped": self._places.caller(),
            "sparse": any(p.grad is not None and p.grad.layout != torch.strided for p in parameters),
            "devices": sorted({str(p.device) for p in parameters}),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
            "idle": idle,
            "matrix": matrix,
            "counters": 0,
        }
        self._look_for_settings([optimizer])

    def _look_for_settings(self, optimizers: Iterable[Any]) -> None:
        """How many groups of an optimizer differ in a setting by now, at most, and which settings differ: a scheduler
        may change each in its own way."""
        for one in optimizers:
            if (facts := self.optimizers.get(id(one))) is not None:
                groups = [tuple(_setting(group.get(name)) for name in one.defaults) for group in one.param_groups]
                if (settings := len({*groups})) >= facts["settings"]:
                    each = zip(one.defaults, zip(*groups, strict=True), strict=True)
                    facts |= {"settings": settings, "differ": [name for name, held in each if len({*held}) > 1]}

    def _look_for_counters(self, optimizers: Iterable[Any]) -> None:
        """Step counters on a device, where an update reads each of them; a state that was loaded may have put them
        there."""
        for one in optimizers:
            facts = self.optimizers.get(id(one))
            if facts is not None and facts["builtin"] and not (facts["fused"] or facts["capturable"]):
                counters = [state.get("step") for state in one.state.values() if isinstance(state, dict)]
                facts["counters"] = sum(isinstance(n, torch.Tensor) and n.device.type != "cpu" for n in counters)

    def _look_for_hooks(self) -> None:
        """How many there are by now."""
        for key, reference in list(self._modules.items()):
            if (module := reference()) is not None:
                facts, (alike, code) = self.roots[key], most_alike(module)
                facts["hooks"] = (facts["hooks"][0], hooks_of(module))
                facts["alike"] = (facts["alike"][0], alike)
                if code is not None and self._places.users(code.co_filename):
                    facts["hook"] = os.path.abspath(code.co_filename), code.co_firstlineno, code.co_qualname

    def _look_for_the_optimized(self, parameters: Iterable[Any]) -> None:
        """How many parameters of each outermost module optimizers hold, or have held. parameters: of theirs, now."""
        optimized = {id(parameter) for parameter in parameters}
        for key, reference in self._modules.items():
            if optimized and (module := reference()) is not None:
                now = sum(_size(p) for p in module.parameters() if id(p) in optimized)
                self.roots[key]["optimized"] = max(self.roots[key]["optimized"], now)
                self.roots[key]["frozen"] = not any(p.requires_grad for p in module.parameters())
                graded = [p for p in module.parameters() if p.grad is not None]
                self.roots[key]["with_gradients"] = sum(map(_size, graded))
                unused = sum(id(p) not in optimized for p in graded) / max(1, len(graded))
                self.roots[key]["unused"] = min(self.roots[key].get("unused", 1.0), unused)

    def _look_for_parts(self) -> None:
        """Which outermost modules lie in another one, which calls them as well, or by themselves."""
        for reference in list(self._modules.values()):
            module = reference()
            for inner in module.modules() if module is not None else ():
                if inner is not module and id(inner) in self.roots:
                    self.roots[id(inner)]["part_of"] = self.roots[id(module)]["name"]

    # the whole

    def facts(self, agent: "Agent", kind: str, stopped: bool) -> dict[str, Any]:
        """The document of facts.json."""
        steps = agent.steps
        for loader in self.loaders.values():
            if loader["workers"] and (loader["training"] or steps.infers):
                self.making.look_at_workers(loader)
        if threading.get_ident() == agent.thread:
            self.exchange.look()
            self._look_for_the_optimized(parameters_of(steps.optimizers))
            self._look_for_parts()
            self._look_for_hooks()
            self._look_for_counters(steps.optimizers)
            self._look_for_settings(steps.optimizers)
        if agent.losses.slots:  # of losses on the device: whoever computes with plain functions has no module
            self.device = "cuda"
        on_cuda = self.device == "cuda" and torch.cuda.is_initialized()
        return {
            "pid": os.getpid(),
            "torch_imported": agent.torch_imported,
            "rank": agent.rank,
            "world": agent.world,
            "argv": [str(argument) for argument in sys.argv],
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": _cudnn() if on_cuda else None,
            "nccl": _nccl() if on_cuda else None,
            "device": self.device,
            "device_name": torch.cuda.get_device_name() if on_cuda else None,
            "device_uuid": f"GPU-{torch.cuda.get_device_properties().uuid}" if on_cuda else None,
            "capability": list(torch.cuda.get_device_capability()) if on_cuda else None,
            "threads": torch.get_num_threads(),
            "tf32_matmul": tf32_matmul(),
            "cpu_bf16": any(check() for check in BF16_CHECKS),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "switches": sorted(self.habits.switches),
            "dispatch_modes": self.habits.modes("dispatch"),
            "function_modes": self.habits.modes("function"),
            "recomputed": self.recomputed,
            "wasted": agent.wasted.facts,
            "besides": agent.besides.facts({id(one) for one in parameters_of(steps.optimizers)}),
            "retained": self.kept_graphs / max(1, self.looked_backwards),
            "forwards_each": self.habits.forwards / max(1, self.looked_backwards),
            "hung": self.hung,
            "mode": kind,
            "samples_from": steps.samples_from,
            "in_flight": self.in_flight(steps.infers),
            "draining": agent.stopper.draining,
            "seeded": self.session.seed is not None and torch.initial_seed() != self.session.seed,
            "forwards": steps.forwards,
            "backwards": steps.backwards,
            "optimizer_steps": steps.optimizer_steps,
            "replayed": [PHASES[phase] for phase in sorted(steps.replayed)],
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_cuda else None,
            "memory": _memory(agent.host.cost) if on_cuda else None,
            "peak_rss_bytes": _peak_rss(),
            "host": agent.host.cost.facts(),
            "imported": imported() if stopped or agent.done else {},
            "stopped": stopped,
            "loaders": list(self.loaders.values()),
            "roots": list(self.roots.values()),
            "optimizers": list(self.optimizers.values()),
            "compiled": compiled_functions(next(iter(self.roots.values()), None)),
        }


def _in_nhwc(convolution: Any) -> bool:
    """Whether its weight lies so. One that a hook makes before each forward is not there between them."""
    weight = getattr(convolution, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 4:
        return False
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _memory(cost: Cost) -> dict[str, int]:
    """Of the current device: counters that the allocator keeps on the host."""
    stats = torch.cuda.memory_stats()
    return {
        "peak_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "total_bytes": torch.cuda.get_device_properties().total_memory,
        "retries": stats.get("num_alloc_retries", 0),
        "late_mallocs": cost.sums.mallocs,
        "late_retries": cost.sums.retries,
        "since": WARM_STEPS,
        "step": WARM_STEPS + cost.steps,
    }


def _size(parameter: Any) -> int:
    """Its number of elements; none of a lazy one."""
    return 0 if torch.nn.parameter.is_lazy(parameter) else int(parameter.numel())


def _integer(value: Any) -> int | None:
    """A number that the script has given, as Python's own, which numpy's are not; None where it is no whole one."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _setting(value: Any) -> Any:
    """To tell one from another without a look at what may lie on a device."""
    return value if value is None or isinstance(value, (bool, int, float, str, tuple)) else id(value)


def _cudnn() -> str | None:
    """The version of cuDNN that was loaded."""
    try:
        number = torch.backends.cudnn.version()
    except RuntimeError:  # another one than torch was built with
        return None
    if not number:
        return None
    major, size = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{size // 100}.{size % 100}"


def _nccl() -> str | None:
    """The version of NCCL that torch was linked with."""
    number = nccl_number()
    return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}" if number else None


def _peak_rss() -> int | None:
    """Peak resident memory of this process, where Linux tells. (`ru_maxrss` counts what the parent had before exec.)"""
    told = read("/proc/self/status").partition("VmHWM:")[2].split()
    return int(told[0]) * 1024 if told else None


def tf32_matmul() -> bool:
    """Whether matrix products of float32 are in TF32. This knows what was set by either API; the old one raises where
    the script used the new one."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _place(kind: type, method: str) -> dict[str, Any]:
    """File, line and name of a method of the user's; where it is a library's, of the user's line that led here."""
    places = Places()
    code = getattr(getattr(kind, method, None), "__code__", None)
    own = None if code is None else (code.co_filename, code.co_firstlineno, f"{kind.__qualname__}.{method}")
    if own is None or not places.users(own[0]):
        own = places.caller() or own
    return {} if own is None else dict(zip(("file", "line", "function"), own, strict=True))


def _compiled_in_place(module: Any) -> bool:
    """Whether `module.compile()` was called: by the script, or before the agent put its observer there."""
    call = getattr(module, IMPL)
    return bool(call.root.compiled) if hasattr(call, "root") else call is not None


def _class_in_mro(module: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(module).__mro__)
