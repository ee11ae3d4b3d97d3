"""Not a lever: one forward and backward of a model, as a recording of both makes them (`_training_graph`)."""

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._internals import internals
from .._nested import tensors
from ._effects import storage


class Results(NamedTuple):
    """Of a call. tensors: copies of what it returned, and of the gradients that were made; used, plain: see there."""

    tensors: list[Any]
    used: list[bool]
    plain: tuple[Any, list[Any]]


class Call:
    """A forward with arguments of the record's own, and its backward. cotangents: the gradients of its outputs, None of
    those that have none; wanted: what gradients are made of."""

    def __init__(self, forward: Callable[[], Any], wanted: Sequence[Any], cotangents: Sequence[Any] = ()) -> None:
        self.forward, self.wanted, self.cotangents = forward, wanted, cotangents
        self.outputs: list[Any] = []
        self.gradients: Sequence[Any] = []

    def make(self) -> None:
        """The forward."""
        self.outputs = [self.forward()]

    def leaves(self) -> list[Any]:
        """The tensors of its output."""
        return tensors(self.outputs[0])

    def plain(self) -> tuple[Any, list[Any]]:
        """What its output is made of beside tensors."""
        import torch

        leaves, spec = internals().tree_flatten(self.outputs[0])
        return spec, [None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves]

    def differentiate(self, only: int | None = None) -> None:
        """The backward, of all outputs or of one."""
        import torch

        every = enumerate(zip(self.leaves(), self.cotangents, strict=True))
        pairs = [(leaf, of) for at, (leaf, of) in every if of is not None and only in (None, at)]
        leaves, given = [leaf for leaf, _ in pairs], [of for _, of in pairs]
        # In the dtypes of its tensors: the script's autocast, around the forward, is not around backwards.
        with torch.autocast(self.wanted[0].device.type, enabled=False):
            self.gradients = torch.autograd.grad(leaves, self.wanted, given, allow_unused=True)

    def differentiate_into(self, places: Sequence[Any]) -> None:
        """The backward, whose gradients are copied out of the recording's memory: the next forward uses that again."""
        self.differentiate()
        pairs = [(place, g) for place, g in zip(places, self.gradients, strict=True) if place is not None]
        internals().copy_all([place for place, _ in pairs], [g for _, g in pairs])

    def results(self) -> Results:
        """What came of it."""
        copies = [t.detach().clone() for t in [*self.leaves(), *self.gradients] if t is not None]
        return Results(copies, self.used(), self.plain())

    def used(self) -> list[bool]:
        """What gradients were made of."""
        return [gradient is not None for gradient in self.gradients]


class Lent:
    """Gradients that a recording leaves at the same places each time, of which the script gets aliases. These are its
    own to keep: what it still has of them when the next backward comes is told by how many refer to their memory, and
    must not be written to. own: those places; nobody else may have them by now."""

    def __init__(self, own: Sequence[Any]) -> None:
        self.own = own
        self._storages = list(map(storage, own))
        self._unheld = self._users()

    def lent_tensors(self) -> list[Any]:
        """Those of `own` of which the script still has an alias."""
        now = self._users()
        if now == self._unheld:
            return []
        return [g for g, users, alone in zip(self.own, now, self._unheld, strict=True) if users > alone]

    def aliases(self) -> list[Any]:
        """For the script."""
        return list(map(operator.attrgetter("data"), self.own))

    def _users(self) -> list[int]:
        return list(map(internals().storage_uses, self._storages))


def uses_of(call: Call, used: list[bool], again: Callable[[], bool]) -> list[list[bool]]:
    """Of each output, what it depends on. used: of all of them."""
    differentiable = [at for at, of in enumerate(call.cotangents) if of is not None]
    uses = [[False] * len(used) for _ in call.cotangents]
    for at in differentiable:
        if len(differentiable) > 1:  # made anew: compiled code allows one backward of a forward
            again()
            call.make()
            call.differentiate(at)
        uses[at] = call.used()
    return uses


def waves(leaf: Any) -> Any:
    """A gradient that tells places apart, -1 to 1. It lies as the tensor does, as compiled backwards want it."""
    import torch

    line = torch.linspace(-1, 1, max(2, leaf.numel()), dtype=torch.float32, device=leaf.device)[: leaf.numel()]
    made = line.to(leaf.dtype).reshape(leaf.shape)
    if made.stride() == leaf.stride() or not _has_no_overlap(leaf):
        return made
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(made)


def _has_no_overlap(tensor: Any) -> bool:
    """Whether each element surely has a place of its own."""
    extent = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= extent:
            return False
        extent += stride * (size - 1)
    return True


@contextlib.contextmanager
def aliased(module: Any) -> Iterator[None]:
    """Every parameter of the module is another one meanwhile, that lies where it lies. The node that adds up a
    parameter's gradient lives as long as any graph that leads to it, such as that of the script's last loss, and
    belongs to the stream of that; it would draw that stream into the capture, which ends it."""
    import torch

    parts = list(module.modules())
    own = list(map(internals().own_parameters, parts))
    slots = [(of, name, p) for of in own for name, p in of.items() if p is not None]
    lists = [(vars(part), dict(vars(part))) for part in parts if isinstance(part, torch.nn.RNNBase)]
    flat, references = internals().FLAT_WEIGHTS, internals().FLAT_REFERENCES
    aliases: dict[int, Any] = {}
    for _, _, p in slots:
        alias = aliases.setdefault(id(p), torch.nn.Parameter(p.detach(), p.requires_grad))
        vars(alias).update(vars(p))
    try:
        for of, name, p in slots:
            of[name] = aliases[id(p)]
        for of, was in lists:  # they hold their weights twice, and move them where they find others
            of[flat] = [aliases.get(id(weight), weight) for weight in was[flat]]
            of[references] = [None if one is None else weakref.ref(one) for one in of[flat]]
        yield
        if any(aliases[id(p)].data_ptr() != p.data_ptr() for _, _, p in slots):
            raise RuntimeError("its forward moves its parameters")
    finally:
        for of, name, p in slots:
            of[name] = p
        for of, was in lists:
            of.update({name: was[name] for name in (flat, references)})


@contextlib.contextmanager
def as_if_once(state: Sequence[Any]) -> Iterator[Callable[[], bool]]:
    """What it gives puts these tensors and the device's random numbers back to where they were; so does the end. Those
    that are as they were are not written to: others may look at their version. It tells whether any was not."""
    import torch

    from hotlap.agent.probe import random_state

    saved, drawn = [t.clone() for t in state], random_state()[1]

    def again() -> bool:
        changed = [(t, was) for t, was in zip(state, saved, strict=True) if not torch.equal(t, was)]
        with torch.no_grad():
            for tensor, was in changed:
                tensor.copy_(was)
        if drawn is not None:
            torch.cuda.set_rng_state(drawn)
        return bool(changed)

    try:
        yield again
    finally:
        again()
