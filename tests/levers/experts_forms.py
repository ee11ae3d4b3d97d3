"""Mixtures of experts as they are written: loops over experts that `grouped-experts` reads, and some that it leaves."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Expert(nn.Module):
    def __init__(self, dim: int = 8, hidden: int = 12, bias: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias), nn.Linear(dim, hidden, bias)
        self.down, self.dropout = nn.Linear(hidden, dim, bias), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.down(F.silu(self.gate(x)) * self.up(x)))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))


class Layer(nn.Module):
    """never: the router keeps away from the last expert."""

    def __init__(self, make: Any = Expert, experts: int = 4, top: int = 2, never: bool = False) -> None:
        super().__init__()
        self.top, self.num_experts, self.never = top, experts, never
        self.router = nn.Linear(8, experts, bias=False)
        self.experts = nn.ModuleList([make() for _ in range(experts)])

    def probs(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).float()
        if self.never:
            scores = scores - 1e4 * F.one_hot(torch.tensor(self.num_experts - 1), self.num_experts)
        return torch.softmax(scores, dim=-1)


class Zoo(Layer):
    """benchmarks/zoo/moe.py: the loads as numbers."""

    def forward(self, x: torch.Tensor) -> Any:
        probs = self.probs(x)
        weights, chosen = torch.topk(probs, self.top, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        load = []
        for number, expert in enumerate(self.experts):
            rows, slots = torch.nonzero(chosen == number, as_tuple=True)
            load.append(len(rows) / len(x))
            if len(rows) == 0:
                continue
            out[rows] += weights[rows, slots].unsqueeze(1) * expert(x[rows])
        load = torch.tensor(load, device=x.device)
        return out, len(self.experts) * (load * probs.mean(dim=0)).sum()


class Where(Layer):
    """As mistral-inference has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squashed = x.view(-1, x.shape[-1])
        weights, selected = torch.topk(self.router(squashed), self.top)
        weights = F.softmax(weights, dim=1, dtype=torch.float).type_as(x)
        results = torch.zeros_like(squashed)
        for i, expert in enumerate(self.experts):
            batch_idx, nth_expert = torch.where(selected == i)
            results[batch_idx] += weights[batch_idx, nth_expert, None] * expert(squashed[batch_idx])
        return results.view_as(x)


class OneHot(Layer):
    """As transformers had it for Mixtral."""

    def forward(self, x: torch.Tensor) -> Any:
        batch, hidden_dim = x.shape
        probs = self.probs(x)
        weights, selected = torch.topk(probs, self.top, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        final = torch.zeros((batch, hidden_dim), dtype=x.dtype, device=x.device)
        expert_mask = torch.nn.functional.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx])

            # as there: the tokens of this expert, behind a dimension of one
            current_state = x[None, top_x].reshape(-1, hidden_dim)
            current = expert_layer(current_state) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(x.dtype))
        return final.reshape(batch, hidden_dim), probs


class OneHotSkips(Layer):
    """The same with a way out, and a length of the list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, selected = torch.topk(self.probs(x), self.top, dim=-1)
        final = torch.zeros_like(x)
        mask = F.one_hot(selected, num_classes=len(self.experts)).permute(2, 1, 0)
        for i in range(len(self.experts)):
            idx, top_x = torch.where(mask[i])
            if top_x.shape[0] == 0:
                continue
            state = x[None, top_x].reshape(-1, x.shape[-1])
            final.index_add_(0, top_x, self.experts[i](state) * weights[top_x, idx, None])
        return final


class Masks(Layer):
    """As small models of makeMoE's kind have it: (batch, length, dim), and weights by expert."""

    def route(self, x: torch.Tensor) -> Any:
        logits = torch.log(self.probs(x) + 1e-9)
        top, indices = logits.topk(self.top, dim=-1)
        sparse = torch.full_like(logits, float("-inf")).scatter(-1, indices, top)
        return F.softmax(sparse, dim=-1), indices

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gating_output, indices = self.route(x)
        final_output = torch.zeros_like(x)
        flat_x = x.view(-1, x.size(-1))
        flat_gating_output = gating_output.view(-1, gating_output.size(-1))
        for i, expert in enumerate(self.experts):
            expert_mask = (indices == i).any(dim=-1)
            flat_mask = expert_mask.view(-1)
            if flat_mask.any():
                expert_input = flat_x[flat_mask]
                expert_output = expert(expert_input)
                gating_scores = flat_gating_output[flat_mask, i].unsqueeze(1)
                weighted_output = expert_output * gating_scores
                final_output[expert_mask] += weighted_output.squeeze(1)
        return final_output


class NewSum(Layer):
    """`index_add`, whose sum is a new tensor; the choices' own method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.probs(x).topk(self.top, dim=-1)
        out = self.router(x).sum() * torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = (chosen == i).nonzero(as_tuple=True)
            if rows.numel() > 0:
                delta = expert(x[rows])
                delta = delta * weights[rows, slots][:, None]
                out = out.index_add(0, rows, delta)
        return out


class Inside(Layer):
    """In blocks, with a function of its own, factors, a value that is used twice, and weights by expert."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 2.0

        def scaled(z: torch.Tensor) -> torch.Tensor:
            return z * factor

        probs = self.probs(scaled(x))
        _, chosen = torch.topk(probs, self.top)
        out = x.clone()
        with torch.no_grad() if self.top == 0 else torch.enable_grad():
            if self.top:
                for i in range(0, self.num_experts):
                    rows, _ = torch.where(chosen == i)
                    if not rows.numel():
                        continue
                    state = x[rows]
                    out[rows] = out[rows] + factor * probs[rows, i, None] * (self.experts[i](state) - state) / 3
        return out


FORMS: list[Any] = [Zoo, Where, OneHot, OneHotSkips, Masks, NewSum, Inside]


# what is left alone


class Prints(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            print(i)
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out


class WritesRows(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out, x = torch.zeros_like(x), x.clone()
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            x[rows] *= 0.5
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out


class ReadsOut(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            out[rows] += weights[rows, slots, None] * expert(out[rows])
        return out


class ReadsLast(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out * len(rows)


class NotByTopk(Layer):
    """An expert may come twice for a row, of which `+=` adds one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.multinomial(self.probs(x), self.top, replacement=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, _ = torch.where(chosen == i)
            out[rows] += expert(x[rows])
        return out


class KeepsNumbers(Layer):
    load: list[int]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        load = []
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            load.append(len(rows))
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        self.load = load
        return out


class SkipsNumbers(Layer):
    """A number for each expert that has rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        load = []
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            if len(rows) == 0:
                continue
            load.append(len(rows))
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        load = torch.tensor(load)
        return out + load.sum()


class Breaks(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            if len(rows) == 0:
                break
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out


class Alias(Layer):
    """Later experts see what earlier ones added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.probs(x), self.top, dim=-1)
        x = x * 1.0
        out = x.view(-1, x.shape[-1])
        for i, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == i)
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out


class Norm(nn.Module):
    """kind: of a layer that an expert must not have."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), kind(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x))


class Centred(nn.Module):
    """Looks at the mean of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x - x.mean(0))


class Counted(nn.Module):
    """By how many rows it has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / (1 + len(x))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.detach()
        return self.inner(x)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.mul_(0.5))


class InPlaceByName(InPlace):
    """The same by a keyword."""

    def forward(self, x):
        with torch.no_grad():
            torch.mul(x, 0.5, out=x.data)
        return self.inner(x)


class Scaled(nn.Module):
    """made: so many so far; each has a number of its own."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Scaled.made += 1
        self.inner, self._scale = nn.Linear(8, 8), Scaled.made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self._scale
