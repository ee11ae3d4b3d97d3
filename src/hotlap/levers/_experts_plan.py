"""Not a lever: which rows go to which expert, all products of one kind as one, and what becomes of the rows."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from ._autocast import product_dtype

ALIGN: Final = 8
"""Rows of a group, so that each begins at a multiple of 16 bytes in bfloat16, as the grouped product wants it."""
LEAST_CAPABILITY: Final = (9, 0)
GROUPED_MM: Final[Any] = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
PADDED: Final = 2
"""Groups are padded to the largest while that makes at most so many times as many rows."""


class Misfit(Exception):
    """Shapes or types with which the loop would do something else."""


def has_grouped(device: Any, features: Sequence[int]) -> bool:
    """Whether torch's grouped product, which reads the groups' sizes on the device, takes layers of these sizes."""
    if device.type != "cuda" or GROUPED_MM is None:
        return False
    fits = all(number % ALIGN == 0 for number in features)
    return fits and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


class Layout:
    """Rows of one expert after another. rows: how many there are; ends: where each expert's end, on the device for its
    grouped product and else on the host, which waits for them once."""

    def __init__(self, counts: Any, rows: int, grouped: bool) -> None:
        self.grouped = grouped
        experts = len(counts)
        sizes = (counts + (ALIGN - 1)) // ALIGN * ALIGN if grouped else counts
        ends = sizes.cumsum(0)
        self.begins = functional.pad(ends[:-1], (1, 0))
        self.rows = rows + ALIGN * experts if grouped else rows + 1
        if grouped:  # the last has what is left, so that no row is undefined
            self.ends = functional.pad(ends[:-1], (0, 1), value=self.rows).int()
        else:
            self.ends = ends.cpu()

    def product(self, x: Any, weight: Any) -> Any:
        """x: (rows, in), weight: (experts, out, in)."""
        if self.grouped:
            if x.dtype is not torch.bfloat16:
                raise Misfit(f"a product in {x.dtype}")
            return GROUPED_MM(x, weight.transpose(-2, -1), offs=self.ends)
        return torch.ops.hotlap.grouped_product(x, weight, self.ends)

    def added(self, like: Any, bias: Any) -> Any:
        """A row of bias for each row. bias: (experts, out). As a product, whose backward sums over rows."""
        width = ALIGN if self.grouped else 1
        ones = like.new_ones(len(like), width)
        return self.product(ones, functional.pad(bias.unsqueeze(-1), (0, width - 1)))


class Plan:
    """For one call of a loop. chosen: (tokens..., choices), numbers of experts. stand_in: computes all experts."""

    def __init__(self, chosen: Any, stand_in: Any, training: bool, distinct: bool) -> None:
        self.lead, self.choices = chosen.shape[:-1], chosen.shape[-1]
        flat = chosen.reshape(-1, self.choices)
        self.tokens, self.places = len(flat), flat.numel()
        self.stand_in, self.training = stand_in, training
        numbers = torch.arange(stand_in.experts, device=chosen.device)
        # Scanning along rows: a scan down a few columns would have few threads.
        mine = flat.reshape(1, -1) == numbers.unsqueeze(1)
        if distinct:
            again = (flat.unsqueeze(2) == flat.unsqueeze(1)).tril(-1).any(2)
            mine = mine & ~again.reshape(1, -1)
        self.seen = mine.cumsum(1, dtype=torch.int32)
        self.counts = self.seen[:, -1]
        self.valid = mine.any(0)
        self.number = flat.reshape(-1).clamp(0, stand_in.experts - 1)

    def take(self, x: Any, flat: bool) -> Any:
        """`x[rows]`"""
        x = self._tokens(x, flat)
        return x.unsqueeze(1).expand(self.tokens, self.choices, *x.shape[1:]).flatten(0, 1)

    def pair(self, x: Any) -> Any:
        """`x[rows, slots]`"""
        if x.shape[:2] != (self.tokens, self.choices):
            raise Misfit("weights of another shape")
        return x.flatten(0, 1)

    def own(self, x: Any, flat: bool) -> Any:
        """`x[rows, number]`"""
        x = self._tokens(x, flat)
        if x.dim() != 2 or x.shape[1] < self.stand_in.experts:
            raise Misfit("weights of another shape")
        return x.gather(1, self.number.view(self.tokens, self.choices)).reshape(-1)

    def _tokens(self, x: Any, flat: bool) -> Any:
        lead = len(self.lead)
        if flat and len(x) == self.tokens:
            return x
        if flat or x.shape[:lead] != self.lead:
            raise Misfit("rows of another number")
        return x.flatten(0, lead - 1)

    def experts(self, rows: Any) -> Any:
        """`expert(rows)`"""
        grouped = self.stand_in.grouped and product_dtype(rows) is torch.bfloat16
        layout = Layout(self.counts, self.places, grouped)
        begins = layout.begins.index_select(0, self.number)
        place = begins + self.seen.gather(0, self.number.unsqueeze(0)).squeeze(0) - 1
        place = torch.where(self.valid, place, layout.rows - 1)  # what no expert gets lies behind all others
        # Written to its place both ways: then both backwards read, and none has to add up what might be written twice.
        every = torch.arange(self.places, device=place.device)
        back = place.new_full((layout.rows,), self.places).index_copy(0, place, every)
        packed = rows.new_zeros(layout.rows, *rows.shape[1:]).index_copy(0, place, rows)
        answers = self.stand_in(packed, layout, self.training)
        if answers.dim() != 2 or len(answers) != layout.rows:
            raise Misfit("an expert returns other rows")
        return answers.new_zeros(self.places + 1, answers.shape[1]).index_copy(0, back, answers)[:-1]

    def sum(self, rows: Any, out: Any) -> Any:
        """What is added to `out` where each of `rows` is added to that of its token."""
        if rows.dim() != 2 or len(rows) != self.places or self.tokens * rows.shape[1] != out.numel():
            raise Misfit("sums of another shape")
        kept = torch.where(self.valid.unsqueeze(1), rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
        return kept.view(self.tokens, self.choices, -1).sum(1).view(out.shape)

    def numbers(self, by: Any, device: Any = None, dtype: Any = None) -> Any:
        """`torch.tensor([len(rows) / by for each expert])`"""
        numbers = self.counts.long() if by is None else self.counts.double() / by
        if dtype is None and by is not None:
            dtype = torch.get_default_dtype()
        return numbers.to("cpu" if device is None else device, dtype or numbers.dtype)


class Linear(torch.nn.Module):  # type: ignore[misc]
    """Stands for the linear layers at one place of all experts. at: has the layout of the rows."""

    def __init__(self, layers: Sequence[Any], at: Any) -> None:
        super().__init__()
        self.__dict__.update(layers=tuple(layers), at=at)  # not as parts, which others may name or move

    def forward(self, x: Any) -> Any:
        """x: rows of the layout."""
        at, dtype = self.at, product_dtype(x)
        layout = at.layout
        at.inside += 1
        weight = torch.stack([layer.weight for layer in self.layers]).to(dtype)
        y = layout.product(x.to(dtype), weight)
        if self.layers[0].bias is not None:
            y = y + layout.added(y, torch.stack([layer.bias for layer in self.layers]).to(dtype))
        at.inside -= 1
        return y


def define() -> None:
    """The products of groups whose sizes the host knows, as operators: torch.compile need not look into them."""
    if hasattr(torch.ops.hotlap, "grouped_product"):
        return
    product = torch.library.custom_op(
        "hotlap::grouped_product", _product, mutates_args=(), schema="(Tensor x, Tensor weight, Tensor ends) -> Tensor"
    )
    outer = torch.library.custom_op(
        "hotlap::grouped_outer", _outer, mutates_args=(), schema="(Tensor y, Tensor x, Tensor ends) -> Tensor"
    )
    product.register_fake(lambda x, weight, ends: x.new_empty(x.shape[0], weight.shape[1]))
    outer.register_fake(lambda y, x, ends: x.new_empty(ends.shape[0], y.shape[1], x.shape[1]))
    product.register_autograd(_product_backward, setup_context=_keep)
    outer.register_autograd(_outer_backward, setup_context=_keep)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, grad: Any) -> Any:
    x, weight, ends = ctx.saved_tensors
    dx = torch.ops.hotlap.grouped_product(grad, weight.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    dw = torch.ops.hotlap.grouped_outer(grad, x, ends) if ctx.needs_input_grad[1] else None
    return dx, dw, None


def _outer_backward(ctx: Any, grad: Any) -> Any:
    y, x, ends = ctx.saved_tensors
    dy = torch.ops.hotlap.grouped_product(x, grad, ends) if ctx.needs_input_grad[0] else None
    dx = torch.ops.hotlap.grouped_product(y, grad.transpose(1, 2), ends) if ctx.needs_input_grad[1] else None
    return dy, dx, None


def _product(x: Any, weight: Any, ends: Any) -> Any:
    """Of each group's rows with its weight (out, in); rows behind the last are zero."""
    stops = ends.tolist()
    if padded := _padded(x, stops):
        index, place, _ = padded
        y = x.new_zeros(len(x), weight.shape[1])
        y[: stops[-1]] = torch.bmm(x[index], weight.transpose(1, 2)).flatten(0, 1).index_select(0, place)
        return y
    y = x.new_empty(len(x), weight.shape[1])
    y[stops[-1] :].zero_()
    for number, (begin, end) in enumerate(zip([0, *stops], stops, strict=False)):
        torch.mm(x[begin:end], weight[number].t(), out=y[begin:end])
    return y


def _outer(y: Any, x: Any, ends: Any) -> Any:
    """Of each group's rows: (experts, width of y, width of x)."""
    stops = ends.tolist()
    if padded := _padded(x, stops):
        index, _, mine = padded
        return torch.bmm(torch.where(mine, y[index], 0).transpose(1, 2), torch.where(mine, x[index], 0))
    out = x.new_empty(len(stops), y.shape[1], x.shape[1])
    for number, (begin, end) in enumerate(zip([0, *stops], stops, strict=False)):
        torch.mm(y[begin:end].t(), x[begin:end], out=out[number])
    return out


def _pads(x: Any) -> bool:
    """Whether a product for each group would cost more than rows that are computed for nothing."""
    return bool(x.is_cuda)


def _padded(x: Any, stops: list[int]) -> tuple[Any, Any, Any] | None:
    """On a GPU, where the groups are about as large, for one product of all: the rows of groups as long as the largest;
    where in these the rows are; which are the group's own. None: one product for each group."""
    begins = [0, *stops[:-1]]
    counts = [end - begin for begin, end in zip(begins, stops, strict=True)]
    most = max(counts)
    if not _pads(x) or not most or len(counts) * most > PADDED * stops[-1]:
        return None
    begin, count = torch.tensor([begins, counts]).to(x.device, non_blocking=True)
    along = torch.arange(most, device=x.device)
    index = (begin.unsqueeze(1) + along).clamp_(max=len(x) - 1)
    shift = torch.arange(len(counts), device=x.device) * most - begin
    place = torch.repeat_interleave(shift, count, output_size=stops[-1])
    place += torch.arange(stops[-1], device=x.device)
    return index, place, (along < count.unsqueeze(1)).unsqueeze(2)
