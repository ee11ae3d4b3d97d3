"""Correctness against fp64 and side-by-side times of pad-vocabulary, on a GPU.

python benchmarks/heads_and_windows.py
"""


import torch
from torch import nn
from torch.nn import functional as F

from hotlap.levers import _padded_head as padded
from hotlap.levers._losses import compile_losses


def timed(cases, rounds=9, inner=3):
    """Median ms of a forward and backward of each, in turns ABBA, and peak MiB of each alone."""
    times, peaks = {name: [] for name in cases}, {}
    for name, case in cases.items():
        for _ in range(3):
            case()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        case()
        torch.cuda.synchronize()
        peaks[name] = (torch.cuda.max_memory_allocated() - base) / 2**20
    for turn in range(rounds):
        for name in list(cases)[:: 1 if turn % 2 else -1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(inner):
                cases[name]()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / inner)
    for name, ms in times.items():
        ms.sort()
        print(
            f"  {name:34} {ms[len(ms) // 2]:8.3f} ms  ({ms[0]:.3f} to {ms[-1]:.3f})  peak +{peaks[name]:.0f} MiB",
            flush=True,
        )


def taken(head):
    heads = padded.PaddedHeads(lambda why: print("REFUSED", why))
    heads.take(head)
    return head


class Head(nn.Module):
    def __init__(self, classes=50257, width=768, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(width, classes, bias=bias, device="cuda")
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, hidden):
        return self.head(hidden)


def own_loss(logits, labels):
    """Looked up when it is called: compile_losses puts another in its place."""
    return F.cross_entropy(logits, labels)


def head():
    errors()
    x = torch.randn(12, 1024, 768, device="cuda", requires_grad=True)
    y = torch.randint(0, 50257, (12, 1024), device="cuda")

    def case(model, half=True, loss=F.cross_entropy):
        def run():
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                logits = model(x)
                value = loss(logits.view(-1, logits.size(-1)), y.view(-1))
            value.backward()

        return run

    print("head 50257x768, 12x1024 rows, bf16 autocast, with cross-entropy: eager", flush=True)
    timed({"bare": case(Head()), "padded": case(taken(Head())), "bare, 50304 classes": case(Head(50304))})
    torch.set_float32_matmul_precision("high")
    print("the same in float32 with TF32")
    timed({"bare": case(Head(), False), "padded": case(taken(Head()), False)}, 5)
    torch.set_float32_matmul_precision("highest")
    print("the products alone, bf16 (gradient given)")
    g = torch.randn(12 * 1024, 50257, device="cuda", dtype=torch.bfloat16)
    w, h = (torch.randn(n, 768, device="cuda", dtype=torch.bfloat16) for n in (50257, 12 * 1024))
    gp, wp = F.pad(g, (0, 47)), F.pad(w, (0, 0, 0, 47))
    timed({
        "forward": lambda: h @ w.t(), "forward padded": lambda: h @ wp.t(),
        "dgrad": lambda: g @ w, "dgrad padded": lambda: gp @ wp,
        "wgrad": lambda: g.t() @ h, "wgrad padded": lambda: gp.t() @ h,
        "copy of the gradient": lambda: F.pad(g, (0, 47)),
    })  # fmt: skip
    compile_losses()
    compiled = {}
    for name, model in (("bare", Head()), ("padded", taken(Head()))):
        model.compile()
        compiled[f"{name}, compiled with the loss"] = case(model, loss=own_loss)
    print("compiled, as the lever compile does")
    timed(compiled)


def errors():
    """Loss and gradients in bf16, of the bare and the padded head, against fp64: relative errors."""
    x, y = torch.randn(2048, 768, device="cuda"), torch.randint(0, 50257, (2048,), device="cuda")
    found = {}
    for name, model in (
        ("fp64", Head(bias=True).double()),
        ("bare", Head(bias=True)),
        ("padded", taken(Head(bias=True))),
    ):
        hidden = x.detach().clone().to(model.head.weight.dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=name != "fp64"):
            logits = model(hidden)
            loss = F.cross_entropy(logits, y)
        loss.backward()
        found[name] = [loss.detach(), logits.detach(), hidden.grad, model.head.weight.grad, model.head.bias.grad]
        print(name, tuple(logits.shape), logits.stride(), logits.dtype, repr(loss.item()))
    exact = found.pop("fp64")
    for name, got in found.items():
        apart = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, exact, strict=True)]
        print(
            f"  {name:8} relative errors: "
            + ", ".join(f"{n} {e:.2e}" for n, e in zip(("loss", "logits", "dx", "dW", "db"), apart, strict=True))
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    head()
