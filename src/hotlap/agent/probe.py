"""Evidence of parity, taken in the first steps of a trial: what data arrived, what gradients and updates it made.

Only trials do this, and the steps in which it happens are marked so that their times are never quoted.
"""

import ctypes
import hashlib
import json
import math
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from hotlap.records.session import Session

from .torch_internals import is_dense, is_mapped, is_transformed, unwrapped

MAX_ROWS: Final = 4096
ROW_ELEMENTS: Final = 4096
SAMPLED_TENSORS: Final = 64
SAMPLED_ELEMENTS: Final = 32
PLAIN: Final = frozenset({int, float, str, bool, bytes, type(None)})
"""Of which lists may hold very many."""
EPS_TIMES: Final = 16.0
"""Optimizers like Adam divide by a gradient's own size plus eps. Up to so many eps the update depends on that size
(by 6% here); above it is about the learning rate, whatever the size, and a nudged twin's is as large."""
ROUNDING: Final = 2.0**-12
"""A gradient smaller than this beside the largest ones nearby may be what rounding leaves of terms that cancel: it is a
sixteenth of one bfloat16 rounding (2^-8) of such terms. Measured in float32 on a CPU, where it was up to 16 eps (1e-8):
2^-33 to 2^-14 of biases before a BatchNorm, 2^-39 to 2^-26 of biases of attention's keys."""
NEIGHBOURS: Final = 4
"""Parameters before and after one, in the optimizer's order, that are nearby: of its own layer and those around it."""


def leaves(batch: Any, depth: int = 0, most: int = 64) -> Iterator[Any]:
    """The tensors of a batch: tuples, lists (most items of each), mappings and objects with attributes, in a fixed
    order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth > 4:
        return
    elif isinstance(batch, (list, tuple)):
        for item in batch[:most]:
            if type(item) not in PLAIN:
                yield from leaves(item, depth + 1, most)
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from leaves(item, depth + 1, most)
    elif hasattr(batch, "__dict__") and depth < 2:
        for item in vars(batch).values():
            yield from leaves(item, depth + 1, most)


def mapped(tensor: Any) -> bool:
    """Whether a tensor stands for several inside of `torch.vmap`, so that its size is that of one of them."""
    while is_transformed(tensor):
        if is_mapped(tensor):
            return True
        tensor = unwrapped(tensor)
    return False


def row_digests(leaf: Any) -> list[str]:
    """A short digest of each row of a leaf; long rows are sampled at a fixed stride."""
    if leaf.dim() == 0:
        leaf = leaf.reshape(1)
    rows = leaf.detach()[:MAX_ROWS].reshape(min(leaf.shape[0], MAX_ROWS), -1)
    stride = max(1, rows.shape[1] // ROW_ELEMENTS)
    rows = rows[:, ::stride].contiguous().cpu()
    width = rows.shape[1] * rows.element_size()
    raw = ctypes.string_at(rows.data_ptr(), rows.shape[0] * width) if rows.numel() else b""
    pieces = (raw[at : at + width] for at in range(0, len(raw), width))
    return [hashlib.blake2b(piece, digest_size=6).hexdigest() for piece in pieces]


class Probe:
    """Takes the evidence while `active`."""

    def __init__(self, session: Session, append: Callable[[str, str], None]) -> None:
        self.steps = session.probe_steps
        self.append = append
        self.active = session.probe_steps > 0
        self.batches = {True: 0, False: 0}
        self.index = 0
        self.before: dict[int, Any] = {}
        self.first: set[int] = set()
        self.unclipped: dict[int, tuple[int, Any]] = {}
        """Of parameters (by id) whose gradients the script has clipped in this step: backwards until then, and the norm
        of the gradient before."""

    def _write(self, **record: Any) -> None:
        self.append("probe.jsonl", json.dumps(record) + "\n")

    def step_done(self, index: int) -> None:
        """The probe ends with its last step."""
        self.index = index
        self.unclipped.clear()
        if index >= self.steps:
            self.active = False

    def batch(self, batch: Any, training: bool) -> None:
        """What a loader delivered to the script, with gradients enabled or not."""
        if not self.active or self.batches[training] > 2 * self.steps:
            return
        found = [
            {"kind": "float" if leaf.is_floating_point() else "int", "rows": row_digests(leaf)}
            for leaf in leaves(batch)
            if is_dense(leaf)
        ]
        self._write(what="batch", batch=sum(self.batches.values()), leaves=found)
        self.batches[training] += 1

    def random_draws(self, before: tuple[Any, Any], after: tuple[Any, Any]) -> None:
        """Whether the first training forward drew random numbers."""
        drew = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True) if a is not None)
        self._write(what="forward", draws=drew)

    def output(self, output: Any) -> None:
        """Some values of what an inference forward returned; compared as updates are."""
        pieces = []
        for leaf in leaves(output):
            if leaf.is_floating_point() and is_dense(leaf) and leaf.numel():
                flat = leaf.detach().reshape(-1)
                pieces.append(flat[:: max(1, flat.numel() // SAMPLED_ELEMENTS)][:SAMPLED_ELEMENTS].double().cpu())
        if pieces:
            values = torch.cat(pieces)
            sampled = [_json(value) for value in values.tolist()]
            self._write(what="update", step=self.index, update_norm=_json(float(values.norm())), update=sampled)

    def before_update(self, key: int, optimizer: Any) -> None:
        """Remember some weights before an optimizer's first step."""
        if self.active and key not in self.before:
            self.before[key] = _sample(optimizer)

    def before_clip(self, parameters: list[Any], backwards: int) -> None:
        """The script is about to clip these gradients, as `backwards` left them, maybe not for the first time."""
        for parameter in parameters:
            gradient, known = parameter.grad, self.unclipped.get(id(parameter))
            if gradient is None or (known is not None and known[0] == backwards):
                continue
            if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
                return  # it is in a graph of the script's own from here on
            self.unclipped[id(parameter)] = backwards, _norm(gradient)

    def after_update(self, key: int, optimizer: Any) -> None:
        """Gradient norm and the change of the remembered weights: after the first step and at the probe's end.

        unclipped_norm: of the gradients before the script clipped them; None where it clipped none, or not finite.
        """
        if not self.active or key not in self.before:
            return
        last = self.index + 1 >= self.steps
        if key in self.first and not last:
            return
        change = _sample(optimizer) - self.before[key]
        order = list(self.before).index(key)
        clipped = any(id(parameter) in self.unclipped for parameter in _parameters(optimizer))
        self._write(
            what="update",
            optimizer=order,
            step=self.index,
            gradient_norm=_json(_gradient_norm(optimizer, {})),
            unclipped_norm=_json(_gradient_norm(optimizer, self.unclipped)) if clipped else None,
            rounding=_rounding(optimizer),
            update_norm=_json(float(change.norm())),
            update=[_json(value) for value in change.tolist()],
        )
        self.first.add(key)


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]


def _chosen(parameters: list[Any]) -> range:
    """Which parameters are sampled."""
    return range(0, len(parameters), max(1, len(parameters) // SAMPLED_TENSORS))[: 2 * SAMPLED_TENSORS]


def _elements(tensor: Any) -> Any:
    """The sampled elements of a parameter or of its gradient."""
    flat = _local(tensor).contiguous().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED_ELEMENTS)][:SAMPLED_ELEMENTS]


def _sample(optimizer: Any) -> Any:
    """Some elements of some parameters, on the host."""
    parameters = _parameters(optimizer)
    pieces = [_elements(parameters[index]).double().cpu() for index in _chosen(parameters)]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64, device="cpu")


def _rounding(optimizer: Any) -> list[int]:
    """Which sampled elements (places in the sample) have a gradient that is but rounding and about the optimizer's eps,
    so that their update says how large that rounding is and nothing of what is learnt.

    As a bias before a BatchNorm has, or one of attention's keys, which have no effect. Zero, which a frozen or unused
    parameter has as well, counts only beside such elements in the same parameter.
    """
    eps = [group.get("eps") for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
    if not any(isinstance(value, float) for value in eps):
        return []
    parameters = _parameters(optimizer)
    largest = [_largest(parameter.grad) for parameter in parameters]
    found: list[int] = []
    at = 0
    for index in _chosen(parameters):
        parameter, gradient = parameters[index], parameters[index].grad
        near = max(largest[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1])
        if isinstance(eps[index], float) and _is_strided(gradient) and math.isfinite(near):
            sizes = _elements(gradient).abs().double().cpu()
            small = sizes <= min(EPS_TIMES * eps[index], ROUNDING * near)
            if bool((small & (sizes > 0)).any()):
                found += (at + small.nonzero().reshape(-1)).tolist()
        at += len(_elements(parameter))
    return found


def _is_strided(gradient: Any) -> bool:
    return gradient is not None and gradient.layout == torch.strided


def _largest(gradient: Any) -> float:
    """Size of a gradient's largest element; infinity where one is not finite."""
    if gradient is None:
        return 0.0
    sizes = _values(gradient).abs()
    largest = float(sizes.max()) if sizes.numel() else 0.0
    return largest if math.isfinite(largest) else math.inf


def _gradient_norm(optimizer: Any, unclipped: Mapping[int, tuple[int, Any]]) -> float:
    """Of all gradients, of some as they were before."""
    total = 0.0
    for parameter in _parameters(optimizer):
        if (known := unclipped.get(id(parameter))) is not None:
            total += float(known[1]) ** 2
        elif parameter.grad is not None:
            total += float(_norm(parameter.grad)) ** 2
    return math.sqrt(total)


def _norm(gradient: Any) -> Any:
    """On the gradient's device."""
    gradient = _values(gradient)
    return (gradient.abs() if gradient.is_complex() else gradient).double().norm()


def _values(gradient: Any) -> Any:
    return _local(gradient.coalesce().values() if gradient.is_sparse else gradient)


def _local(tensor: Any) -> Any:
    """What this rank holds of it."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()


def random_state() -> tuple[Any, Any]:
    """The states of the default generators, host and device."""
    device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), device


def nudge(module: Any, size: float) -> None:
    """Multiply every weight by 1 ± size, signs from a generator of our own; another size, if only by a bit, takes other
    signs."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(struct.pack("<d", size)))
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point():
                continue
            sign = torch.randint(0, 2, (min(parameter.numel(), 65536),), generator=generator, device="cpu") * 2 - 1
            repeats = -(-parameter.numel() // max(1, sign.numel()))
            factor = (1 + size * sign.repeat(max(1, repeats))[: parameter.numel()].float()).reshape(parameter.shape)
            parameter.mul_(factor.to(parameter.device, parameter.dtype))


def redraw(seed: int) -> None:
    """Reseed every generator: the same samples in the same order, other random draws."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
