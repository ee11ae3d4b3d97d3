"""What scripts do with a model once it is trained, which the steps of a trial never reach: what came of each, in words
that levers with other rounding do not change."""

import copy
import io

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils import prune


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.ModuleList([Block() for _ in range(3)])
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3)))


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        at = step * 8 % len(X)
        loss = functional.cross_entropy(model(X[at : at + 8]), Y[at : at + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sorted(key for state in optimizer.state.values() for key in state)[:3]


def loss_of(weights, x, y):
    return functional.cross_entropy(functional_call(model, weights, x), y)


def alone(weights, x, y):
    return loss_of(weights, x[None], y[None])


def saved():
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(x)


def without_a_third(of):
    prune.l1_unstructured(of.last, "weight", 0.3)
    of(x)
    prune.remove(of.last, "weight")
    return of(x), (of.last.weight == 0).sum().item()


def curvature():
    loss = functional.cross_entropy(model(x), y)
    found = torch.autograd.grad(loss, list(model.parameters()), None, None, True)  # not as most write it: create_graph
    return torch.autograd.grad(sum((one * one).sum() for one in found), list(model.parameters())[:1])


def twice():
    loss = functional.cross_entropy(model(X[:8]), Y[:8])
    loss.backward(retain_graph=True)
    once = [weight.grad.clone() for weight in model.parameters()]
    loss.backward()
    return all(torch.allclose(weight.grad, 2 * one) for weight, one in zip(model.parameters(), once))


def hooked():
    seen = []
    hooks = [one.register_forward_hook(lambda *_: seen.append(1)) for one in model.modules()]
    model(x)
    for hook in hooks:
        hook.remove()
    return len(seen)


def another_head():
    model.last = nn.Linear(8, 5)
    return model(x)


def frozen():
    for weight in list(model.parameters())[:-2]:
        weight.requires_grad_(False)
    model.zero_grad()
    functional.cross_entropy(model.train()(x), y % 5).backward()
    return sum(weight.grad is not None for weight in model.parameters())


def said(name, found):
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return said(name, found[0]) if found and torch.is_tensor(found[0]) else print(name, found)
    shown = (tuple(found.shape), found.dtype, bool(found.isfinite().all())) if torch.is_tensor(found) else found
    return print(name, shown)


torch.manual_seed(0)
X, Y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
model = Images()
said("optimizer", train(model, 24))
model.zero_grad()
said("a backward twice", twice())
x, y = X[:4], Y[:4]
model.eval()
weights = {name: one.detach() for name, one in model.named_parameters()}
said("state", sorted(model.state_dict()))
said("gradients of a function", grad(loss_of)(weights, x, y))
said("gradients of each sample", vmap(grad(alone), in_dims=(None, 0, 0))(weights, x, y))
said("exported", torch.export.export(model, (x,)).module()(x))
said("symbolically traced", torch.fx.symbolic_trace(model)(x))
said("traced", torch.jit.trace(model, x, check_trace=False)(x))
said("scripted", torch.jit.script(model)(x))
said("saved", saved())
said("quantized", torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})(x))
said("in double precision", copy.deepcopy(model).double()(x.double()))
said("in half precision", copy.deepcopy(model).bfloat16()(x.bfloat16()))
said("a pruned copy", without_a_third(copy.deepcopy(model)))
said("pruned", without_a_third(model))
said("curvature", curvature())
said("hooks", hooked())
said("with another head", another_head())
said("with frozen layers", frozen())
said("another one is trained", train(Images(), 12))
