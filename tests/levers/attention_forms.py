"""Attention as people write it by hand. Each form takes x of (2, 6, 16) in the dtype of its weights.

WANTED: by form, "causal", "mask" or "plain" where it must be rewritten (with is_causal, a mask, or neither), else part
of the reason why not.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

B, T, C, H = 2, 6, 16, 2
D = C // H
WANTED: dict[type["Form"], str] = {}


def wanted(what: str) -> Any:
    def note(kind: type["Form"]) -> type["Form"]:
        WANTED[kind] = what
        return kind

    return note


def wide(x: Any) -> torch.dtype:
    """What people upcast to."""
    return torch.promote_types(x.dtype, torch.float32)


class Form(nn.Module):
    """Projections and a causal buffer; `attend` is what is written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(C, 3 * C)
        self.drop = nn.Dropout(0.0)
        self.soft = nn.Softmax(dim=-1)
        self.table = nn.Parameter(torch.randn(H, T, T))
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T))
        self.register_buffer("bias", torch.tril(torch.ones(T, T, dtype=torch.bool)).view(1, 1, T, T))
        self.register_buffer("value", torch.tensor(-1e9), persistent=False)
        padding = torch.ones(B, T, dtype=torch.bool)
        padding[1, 4:] = False
        self.padding = padding.clone()

    def heads(self, x: Any) -> Any:
        return [part.view(B, -1, H, D).transpose(1, 2) for part in self.qkv(x).split(C, dim=2)]

    def forward(self, x: Any, padding: Any) -> Any:
        return self.attend(x, padding)


@wanted("causal")
class NanoGPT(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return (att @ v).transpose(1, 2).contiguous().view(B, T, C)


@wanted("causal")
class MinGPTBeforeScaling(Form):
    """Masked first and scaled afterwards, in place, with a finite fill."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        att = torch.matmul(q, k.transpose(2, 3))
        att.masked_fill_(~self.bias[..., :T, :T], -1e9)
        att = att / D**0.5
        return self.soft(att).matmul(v).transpose(1, 2).reshape(B, T, C)


@wanted("used for something else")
class AnnotatedTransformer(Form):
    """Keeps the weights on itself."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D)
        scores = scores.masked_fill(padding[:, None, None, :] == 0, -1e9)
        self.attn = scores.softmax(dim=-1)
        return torch.matmul(self.attn, v)


@wanted("mask")
class AnnotatedTransformerWithoutWeights(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        subsequent = torch.triu(torch.ones(1, T, T, device=x.device), diagonal=1).type(torch.uint8) == 0
        mask = padding[:, None, :] & subsequent
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D)
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return torch.matmul(scores.softmax(dim=-1), v)


@wanted("plain")
class TimmViT(Form):
    """q scaled, no mask, qkv unbound from one tensor."""

    def attend(self, x, padding):
        q, k, v = self.qkv(x).reshape(B, T, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * D**-0.5) @ k.transpose(-2, -1)
        attn = self.drop(attn.softmax(dim=-1))
        return (attn @ v).transpose(1, 2).reshape(B, T, C)


@wanted("mask")
class Bert(Form):
    """An additive mask made from the padding."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        extended = (1.0 - padding[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D)
        scores = scores + extended
        probs = self.drop(nn.functional.softmax(scores, dim=-1))
        return torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous().view(B, T, C)


@wanted("causal")
class OldGPT2(Form):
    """`where` with the fill in a tensor, scaled by a tensor, weights cast to v's type."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / torch.full([], v.size(-1) ** 0.5, dtype=w.dtype, device=w.device)
        causal = self.bias[:, :, T - T : T, :T]
        w = torch.where(causal, w.to(w.dtype), torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype))
        w = nn.functional.softmax(w, dim=-1).type(v.dtype)
        return torch.matmul(self.drop(w), v)


@wanted("mask")
class OldGPT2WithPadding(Form):
    """Causal by `where`, padding added."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        w = q @ k.transpose(-1, -2) / math.sqrt(D)
        low = torch.finfo(w.dtype).min
        w = torch.where(self.bias, w, low) + (~padding[:, None, None]).to(w.dtype) * low
        return torch.softmax(w, -1) @ v


@wanted("causal")
class Einsum(Form):
    """Sequence before heads all the way."""

    def attend(self, x, padding):
        q, k, v = (part.view(B, T, H, D) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
        scores = scores + torch.triu(torch.full((T, T), float("-inf"), dtype=x.dtype), diagonal=1)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(B, T, C)


@wanted("plain")
class EinsumTurned(Form):
    """Factors the other way round, three batch dimensions."""

    def attend(self, x, padding):
        q, k, v = (part.view(B, 2, 3, H, D) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bnshd,bnthd->bnhts", k, q) * D**-0.5
        return torch.einsum("bnshd,bnhts->bnthd", v, scores.softmax(dim=-1))


@wanted("plain")
class Bmm(Form):
    """Batch and heads in one dimension, scaled by baddbmm."""

    def attend(self, x, padding):
        q, k, v = (part.reshape(B * H, T, D) for part in self.heads(x))
        empty = torch.zeros(B * H, T, T, dtype=x.dtype)
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
        return torch.bmm(scores.softmax(dim=-1), v).view(B, H, T, D)


@wanted("mask")
class Opt(Form):
    """bmm with the mask added in another shape, as BART and OPT do."""

    def attend(self, x, padding):
        q, k, v = (part.reshape(B * H, T, D) for part in self.heads(x))
        additive = torch.zeros(B, 1, T, T, dtype=x.dtype).masked_fill(~padding[:, None, None, :], -1e30)
        weights = torch.bmm(q * D**-0.5, k.transpose(1, 2))
        weights = (weights.view(B, H, T, T) + additive).view(B * H, T, T)
        return torch.bmm(F.dropout(F.softmax(weights, dim=-1), p=0.1, training=False), v)


@wanted("mask")
class T5(Form):
    """No scaling, a learnt bias added in place, softmax in float32."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += self.table.unsqueeze(0)
        weights = nn.functional.softmax(scores.to(wide(x)), dim=-1).type_as(scores)
        return torch.matmul(nn.functional.dropout(weights, p=0.0, training=self.training), v)


@wanted("causal")
class Llama(Form):
    """Key and value heads repeated, softmax upcast, the mask a slice of a large additive buffer."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        k, v = (part[:, :1, None].expand(B, 1, H, T, D).reshape(B, H, T, D) for part in (k, v))
        causal = torch.full((T, T), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        weights = torch.matmul(q, k.transpose(2, 3)) * D**-0.5 + causal[None, None]
        weights = nn.functional.softmax(weights, dim=-1, dtype=wide(x)).to(q.dtype)
        return torch.matmul(weights, v)


@wanted("plain")
class MultiQuery(Form):
    """One head of keys and values, broadcast by the product."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return ((q @ k[:, :1].mT) / math.sqrt(D)).softmax(-1) @ v[:, :1]


@wanted("mask")
class Swin(Form):
    """Windows: a bias for each head, then a mask for each window in five dimensions, here of 3 tokens."""

    def attend(self, x, padding):
        q, k, v = self.qkv(x).reshape(2 * B, 3, 3, H, D).permute(2, 0, 3, 1, 4)
        attn = (q * D**-0.5) @ k.transpose(-2, -1)
        attn = attn + self.table[:, :3, :3].contiguous().unsqueeze(0)
        shifted = torch.zeros(2, 3, 3, dtype=x.dtype).masked_fill(torch.eye(3).bool(), -100.0)
        attn = attn.view(2 * B // 2, 2, H, 3, 3) + shifted.unsqueeze(1).unsqueeze(0)
        attn = self.soft(attn.view(-1, H, 3, 3))
        return (self.drop(attn) @ v).transpose(1, 2).reshape(2 * B, 3, C)


@wanted("mask")
class CrossAttention(Form):
    """Other keys than queries, some of them padding, and the last sample's keys all masked."""

    def attend(self, x, padding):
        q, _, _ = self.heads(x[:, :4])
        _, k, v = self.heads(x)
        none = padding & torch.tensor([[True], [False]])
        scores = torch.where(none[:, None, None, :], q @ k.transpose(-2, -1) / 4.0, -1e9)
        return scores.softmax(-1) @ v


@wanted("mask")
class KeyPadding(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        energy = (q @ k.transpose(-2, -1)) * 0.3
        energy = energy.masked_fill(~padding.view(B, 1, 1, T), float("-inf"))
        return torch.matmul(torch.nn.functional.softmax(energy, dim=3), v)


@wanted("mask")
class Alibi(Form):
    """A constant bias, which must not be taken for a mask."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        at = torch.arange(T)
        bias = -0.5 * (at[:, None] - at[None, :]).abs().to(x.dtype)
        return (q @ k.mT * 0.5 + bias).softmax(-1) @ v


@wanted("mask")
class SlidingWindow(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        at = torch.arange(T)
        near = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < 3)
        return (q @ k.mT * 0.5).masked_fill(~near, float("-inf")).softmax(-1) @ v


@wanted("plain")
class SingleHead(Form):
    """Two dimensions."""

    def attend(self, x, padding):
        q, k, v = self.qkv(x[0]).split(C, dim=-1)
        return (q @ k.T / 4.0).softmax(-1) @ v


@wanted("causal")
class TwoLayers(Form):
    """One attention feeds the next directly."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        for _ in range(2):
            v = (q @ k.mT * 0.5).masked_fill(self.mask == 0, float("-inf")).softmax(-1) @ v
        return v


@wanted("mask")
class OffsetQueries(Form):
    """The last queries of a causal mask: not the kernel's is_causal, which counts from the first key."""

    def attend(self, x, padding):
        q, k, v = self.heads(x)
        scores = (q[:, :, 2:] @ k.mT * 0.5).masked_fill(self.mask[:, :, 2:] == 0, float("-inf"))
        return scores.softmax(-1) @ v


@wanted("used for something else")
class ReturnsWeights(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        weights = (q @ k.mT * 0.5).softmax(-1)
        return torch.cat([(weights @ v).flatten(), weights.flatten()])


@wanted("used for something else")
class EntropyOfWeights(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        weights = (q @ k.mT * 0.5).softmax(-1)
        return (weights @ v) * (weights * weights.log()).sum()


@wanted("is not negligible")
class SoftMasking(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return (q @ k.mT * 0.5).masked_fill(self.mask == 0, -3.0).softmax(-1) @ v


@wanted("tanh")
class SoftCap(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return (torch.tanh(q @ k.mT / 10) * 10).softmax(-1) @ v


@wanted("last dimension")
class OverQueries(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return (q @ k.mT * 0.5).softmax(-2) @ v


@wanted("before the softmax")
class Gate(Form):
    """A softmax that is no attention."""

    def attend(self, x, padding):
        return self.qkv(x).softmax(-1) @ self.qkv.weight


@wanted("no positive number")
class LearntScale(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return ((q @ k.mT) * self.table[:, :1, :1]).softmax(-1) @ v


@wanted("between the softmax and v")
class HeadMask(Form):
    def attend(self, x, padding):
        q, k, v = self.heads(x)
        return ((q @ k.mT * 0.5).softmax(-1) * self.table[:, :1, :1]) @ v


@wanted("plain")
class OwnMultihead(Form):
    """torch's own layer, whose weights are made and dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(C, H, batch_first=True)

    def attend(self, x, padding):
        return self.layer(x, x, x)[0]
