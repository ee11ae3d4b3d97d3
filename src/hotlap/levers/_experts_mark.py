"""Not a lever: what stands in a module whose loop over experts is computed at once, and how that is compared first."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ._effects import checkpointing, storage
from ._experts_alike import ByRow, StandIn, Unlike, Watched, alike
from ._experts_plan import Misfit, Plan
from ._experts_values import Unread
from ._experts_written import Written, written
from ._forward_graph import tried
from ._training_call import waves

MARK: Final = "_hotlap_experts"
COMPARED: Final = 2
"""Calls of a kind that are compared with the loop before they take its place."""
HALF: Final = 0.03
SINGLE: Final = {"cpu": 1e-4, "cuda": 3e-3}
"""Relative errors of norms that are rounding: in half precisions, and in others by device (TF32)."""
FAINT: Final = 0.01
"""Of the largest gradient of its kind; below, a gradient's own norm is no measure."""


class Mark:
    """In a module. A pickle or a deep copy of it is None."""

    def __init__(self, module: Any, root: Any, how: Written, leave: Callable[["Mark", str], None]) -> None:
        self.how, self.leave = how, leave
        experts = _at(module, how.what.experts)
        if not isinstance(experts, torch.nn.ModuleList):
            raise Unlike(f"{how.what.experts} is a {type(experts).__name__}, not a ModuleList")
        if how.what.limit and _at(module, how.what.limit) != len(experts):
            raise Unlike(f"{how.what.limit} is not the number of the experts")
        alike(experts, root)
        self.module, self.experts = module, list(experts)
        self.stand_in = StandIn(self.experts)
        self.watched = Watched(module, experts)
        self.seen: dict[Any, int] = {}
        self.ready: dict[Any, bool] = {}
        self.off = self.paused = False
        self.counts: Any = None
        """Rows of each expert in calls with gradients; ran_loop: whether the loop ran in one."""
        self.ran_loop = False
        self.skips = how.what.skips

    @property
    def used(self) -> bool:
        """Whether it may have taken the place of the loop."""
        return any(self.ready.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def plan(self, chosen: Any) -> Plan:
        """For one call. Raises Misfit."""
        if chosen.dim() < 2 or (self.how.what.pairs and chosen.dim() != 2) or not chosen.numel():
            raise Misfit("choices of another shape")
        made = Plan(chosen, self.stand_in, self.module.training, self.how.what.distinct)
        if self.skips and torch.is_grad_enabled():
            self.counts = made.counts if self.counts is None else self.counts + made.counts
        return made

    def looped(self) -> None:
        """The loop takes a call."""
        if torch.is_grad_enabled():
            self.ran_loop = True

    # comparing

    def compared(self, key: Any, module: Any, values: Sequence[Any]) -> Any:
        """The loop, and beside it what would take its place."""
        copies, failed = tried(lambda: (self._copies(values), self._copies(values)))
        result = self.how.loop(module, *values)
        if not checkpointing():
            why, failed = (None, failed) if failed else tried(lambda: self._compare(module, *copies))
            if why := why or failed or self._aliased(values):
                self.leave(self, why)
            else:
                self.seen[key] = self.seen.get(key, 0) + 1
        return result

    def begin(self) -> None:
        """Before an outermost forward: the loop is left only here, since a checkpoint runs again what ran in its
        forward."""
        self.ready.update((key, True) for key, seen in self.seen.items() if seen >= COMPARED)

    def _copies(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Arguments of a call, and those of them that gradients are made of."""
        names, changed = self.how.what.inputs, {*self.how.what.accumulators, *self.how.what.lists}
        args, leaves = [], []
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, torch.Tensor):
                args.append(list(value) if name in changed and isinstance(value, list) else value)
                continue
            copy = value.detach()
            if value.requires_grad:
                copy = copy.clone().requires_grad_()
                leaves.append(copy)
            args.append(copy.clone() if name in changed else copy)
        return args, leaves

    def _compare(self, module: Any, one: tuple[list[Any], list[Any]], other: tuple[list[Any], list[Any]]) -> str:
        parameters = [p for expert in self.experts for p in expert.parameters() if p.requires_grad]
        grad, at = torch.is_grad_enabled(), self.stand_in.at
        by_row = ByRow(at)
        at.layout, at.inside = None, 0
        # No draws: experts that draw are refused; the generators are put back where one drew all the same.
        devices = [p.device for p in parameters[:1] if p.device.type == "cuda"]
        with torch.random.fork_rng(devices):
            expected = self._outputs(self.how.loop(module, *one[0]), one[0])
            wanted = _gradients(expected, [*one[1], *parameters]) if grad else []
            try:
                with by_row:
                    outputs = self._outputs(self.how.grouped(self.plan, module, *other[0]), other[0])
            finally:
                at.layout, at.inside, self.counts = None, 0, None
            if by_row.why:
                return by_row.why
            gradients = _gradients(outputs, [*other[1], *parameters]) if grad else []
        return _apart(outputs, expected, "output", len(expected)) or _apart(gradients, wanted, "gradient", len(one[1]))

    def _aliased(self, values: Sequence[Any]) -> str:
        """Rows must not be added to what is read."""
        named = dict(zip(self.how.what.inputs, values, strict=True))
        for name in self.how.what.accumulators:
            for other, value in named.items():
                if other != name and isinstance(value, torch.Tensor) and storage(value) == storage(named[name]):
                    return f"{name} and {other} are parts of one tensor"
        return ""

    def _outputs(self, returned: Any, values: Sequence[Any]) -> list[Any]:
        """All that a call made: what it returned and what it added to."""
        added = [value for name, value in zip(self.how.what.inputs, values, strict=True) if name in self._added]
        return [one for one in [*returned, *added] if isinstance(one, torch.Tensor)]

    @functools.cached_property
    def _added(self) -> set[str]:
        return set(self.how.what.accumulators) - set(self.how.what.outputs)


def _gradients(outputs: Sequence[Any], of: Sequence[Any]) -> list[Any]:
    outputs = [one for one in outputs if one.requires_grad]
    if not outputs or not of:
        return []
    made = torch.autograd.grad(outputs, of, [waves(one) for one in outputs], allow_unused=True)
    return [torch.zeros_like(one) if g is None else g for one, g in zip(of, made, strict=True)]


def _apart(got: Sequence[Any], expected: Sequence[Any], what: str, split: int) -> str:
    """Why tensors differ by more than rounding, "" if they do not. split: how many are of the first kind."""
    if len(got) != len(expected):
        return f"another number of {what}s"
    for kind in (slice(0, split), slice(split, None)):
        largest = max((float(one.detach().float().norm()) for one in expected[kind]), default=0.0)
        for a, b in zip(got[kind], expected[kind], strict=True):
            if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
                return f"an {what} of {a.dtype} and shape {tuple(a.shape)} in place of {b.dtype} and {tuple(b.shape)}"
            gap = float((a.detach().double() - b.detach().double()).norm())
            scale = max(float(b.detach().double().norm()), FAINT * largest)
            if not gap <= _tolerance(expected) * scale and gap != 0:
                return f"an {what} differs by {gap / scale if scale else gap:.2%} from the loop's"
    return ""


def _tolerance(expected: Sequence[Any]) -> float:
    device = expected[0].device.type if expected else "cpu"
    half = any(one.dtype in (torch.bfloat16, torch.float16) for one in expected)
    return HALF if half or torch.is_autocast_enabled(device) else SINGLE.get(device, SINGLE["cpu"])


def _at(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _kind(module: Any, values: Sequence[Any]) -> Any:
    """What tells calls apart that are compared anew."""
    kinds = tuple(
        (value.dtype, value.dim(), value.requires_grad) if isinstance(value, torch.Tensor) else None for value in values
    )
    device = next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return module.training, torch.is_grad_enabled(), device, autocast, kinds


def _call(module: Any, *values: Any) -> Any:
    """In place of the loop."""
    mark = module.__dict__[MARK]
    if not mark.off and not mark.paused:
        key = _kind(module, values)
        if mark.ready.get(key, False):
            try:
                return mark.how.grouped(mark.plan, module, *values)
            except Misfit:
                mark.looped()
                return mark.how.loop(module, *values)
        if not torch.compiler.is_compiling():
            mark.looped()
            return mark.compared(key, module, values)
    mark.looped()
    return mark.how.loop(module, *values)


def find(root: Any, leave: Callable[[Mark, str], None]) -> tuple[list[Mark], list[str]]:
    """Marks for the modules of a model whose loops over experts were read; and why others' were not."""
    marks: list[Mark] = []
    whys: list[str] = []
    known: dict[Any, Written | str | None] = {}
    for module in root.modules():
        lists = [part for part in module.children() if isinstance(part, torch.nn.ModuleList) and len(part) > 1]
        if not lists or MARK in vars(module) or "forward" in vars(module):
            continue  # one of its own was put there by something else
        kind: Any = type(module)
        if kind not in known:
            known[kind] = _read(kind)
        how = known[kind]
        try:
            if isinstance(how, Written):
                marks.append(Mark(module, root, how, leave))
        except Unlike as why:
            how = str(why)
        if isinstance(how, str):
            whys.append(f"{kind.__name__}: {how}")
    return marks, whys


def _read(kind: Any) -> Written | str | None:
    """What takes the place of a class's forward; None where it has no loop over experts, why where it is not read."""
    try:
        original: Written | None = getattr(kind.forward, MARK, None)
        return original or (written(kind.forward, _call) if hasattr(kind.forward, "__code__") else None)
    except Unread as why:
        return str(why)


def put(marks: Sequence[Mark]) -> None:
    """Let the modules' classes look for their marks."""
    for mark in marks:
        kind: Any = type(mark.module)
        if not hasattr(kind.forward, MARK):
            kind.forward = _forward(kind.forward, mark.how)
        vars(mark.module)[MARK] = mark


def _forward(original: Callable[..., Any], how: Written) -> Callable[..., Any]:
    rewritten = how.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get(MARK) is None:
            return original(self, *args, **kwargs)
        return rewritten(self, *args, **kwargs)

    setattr(forward, MARK, how)
    return forward
