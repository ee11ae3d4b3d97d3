"""A training loop that times itself, for benchmarks/overhead.py. Knows nothing of hotlap.

`--loop gan`: two models with an optimizer each, of which one steps, then the other; a step is both. `--loop hand`: no
optimizer, the script writes to the weights itself.

Prints one JSON line: milliseconds a step over the second half (mean, and the first decile, which a busy machine
disturbs least), a digest of the weights, the losses' digest, and the counters of torch.compile.
"""

import argparse
import hashlib
import itertools
import json
import time
from collections.abc import Callable

import torch
from overhead_switch import Switch
from torch import nn

TOGGLED_FROM = 320
"""Steps, or half of them where there are fewer. Until step 200 hotlap looks at every one."""

Train = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def classifier(args: argparse.Namespace, device: torch.device) -> nn.Module:
    layers = [m for _ in range(args.layers) for m in (nn.Linear(args.width, args.width), nn.GELU())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(args.width, 10)).to(device)
    return torch.compile(model) if args.compile else model  # type: ignore[return-value]


def simple(args: argparse.Namespace, device: torch.device) -> tuple[list[nn.Module], Train]:
    """One model and one optimizer: the models, and what a step does."""
    model = classifier(args, device)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [model], train


def gan(args: argparse.Namespace, device: torch.device) -> tuple[list[nn.Module], Train]:
    """A critic and a maker of what it criticises, which take turns."""
    width = args.width

    def net(last: int) -> nn.Module:
        layers = [m for _ in range(args.layers) for m in (nn.Linear(width, width), nn.GELU())]
        made: nn.Module = nn.Sequential(*layers, nn.Linear(width, last)).to(device)
        return torch.compile(made) if args.compile else made

    critic, maker = net(1), net(width)
    first, second = torch.optim.AdamW(critic.parameters()), torch.optim.AdamW(maker.parameters())

    def train(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        made = maker(inputs)
        first.zero_grad()
        loss = nn.functional.softplus(critic(made.detach()) - critic(inputs)).mean()
        loss.backward()
        first.step()
        second.zero_grad()
        nn.functional.softplus(-critic(made)).mean().backward()
        second.step()
        return loss.detach()

    return [critic, maker], train


def hand(args: argparse.Namespace, device: torch.device) -> tuple[list[nn.Module], Train]:
    """A model whose updates are made by hand."""
    model = classifier(args, device)
    parameters = list(model.parameters())

    def train(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=1e-3)
                parameter.grad = None
        return loss.detach()

    return [model], train


LOOPS = {"simple": simple, "gan": gan, "hand": hand}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=LOOPS, default="simple")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--toggle", action="store_true", help="take hotlap's hooks out and in every few steps")
    parser.add_argument("--syncs", action="store_true", help="warn at each synchronisation (CUDA)")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    models, train = LOOPS[args.loop](args, device)
    data = torch.utils.data.TensorDataset(
        torch.randn(args.batch * 64, args.width), torch.randint(0, 10, (args.batch * 64,))
    )
    loader = torch.utils.data.DataLoader(data, batch_size=None, sampler=Batches(args.batch, 64))
    losses: list[torch.Tensor] = []
    step, begun, begun_cpu = 0, 0.0, 0.0
    ends: list[float] = []
    switch: Switch | None = None
    if args.syncs:
        torch.cuda.set_sync_debug_mode("warn")
    while step < args.steps:
        for x, y in loader:
            if step == args.steps // 2:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                begun, begun_cpu = time.perf_counter(), time.process_time()
            inputs, labels = x.to(device), y.to(device)
            losses.append(train(inputs, labels))
            if switch is not None:
                switch.step()
            ends.append(time.perf_counter())
            step += 1
            if args.toggle and step == min(TOGGLED_FROM, args.steps // 2):
                switch = Switch(*models)
            if step >= args.steps:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    ms = (time.perf_counter() - begun) * 1000 / (args.steps - args.steps // 2)
    cpu_ms = (time.process_time() - begun_cpu) * 1000 / (args.steps - args.steps // 2)
    torch.cuda.set_sync_debug_mode("default") if args.syncs else None
    walls = sorted(1000 * (b - a) for a, b in itertools.pairwise(ends[args.steps // 2 :]))
    digest = hashlib.sha256()
    for value in (value for model in models for value in model.state_dict().values()):
        digest.update(value.cpu().numpy().tobytes())
    from torch._dynamo.utils import counters

    print(
        json.dumps(
            {
                "ms": ms,
                "decile_ms": walls[len(walls) // 10],
                **({"inside_us": switch.added_us()} if switch is not None else {}),
                "cpu_ms": cpu_ms,
                "weights": digest.hexdigest()[:16],
                "losses": hashlib.sha256(torch.stack(losses).cpu().numpy().tobytes()).hexdigest()[:16],
                "graph_breaks": sum(counters["graph_break"].values()),
                "frames": counters["frames"].get("total", 0),
                "recompiles": counters["stats"].get("unique_graphs", 0),
            }
        )
    )


class Batches(torch.utils.data.Sampler):
    """Index batches, so that the loader itself costs little."""

    def __init__(self, batch: int, count: int) -> None:
        self.batch, self.count = batch, count

    def __iter__(self):
        for at in range(self.count):
            yield list(range(at * self.batch, (at + 1) * self.batch))

    def __len__(self) -> int:
        return self.count


if __name__ == "__main__":
    main()
