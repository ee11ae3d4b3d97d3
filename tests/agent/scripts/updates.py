"""The ways from a loss to an update: clipping, schedulers, accumulation, several optimizers, closures, a scaler."""

import argparse
import contextlib

import torch
from common import Data, end, net, said
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=6)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--clear", choices=["optimizer", "module", "hand"], default="optimizer")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--schedule", choices=["batch", "epoch"], default=None)
parser.add_argument("--optimizers", type=int, default=1)
parser.add_argument("--closure", action="store_true")
parser.add_argument("--scaler", type=float, default=None, help="float16 by hand, from this scale")
parser.add_argument("--larger", type=float, default=1.0, help="the loss is larger by this")
args = parser.parse_args()


def main():
    model = net()
    parameters = list(model.parameters())
    halves = [parameters] if args.optimizers == 1 else [parameters[:2], parameters[2:]]
    optimizers = [torch.optim.SGD(half, 0.1, momentum=0.5) for half in halves]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9) if args.schedule else None
    scaler = torch.amp.GradScaler("cpu", init_scale=args.scaler or 1.0, enabled=args.scaler is not None)
    cast = torch.autocast("cpu", torch.float16) if args.scaler else contextlib.nullcontext()
    for _ in range(args.epochs):
        for x, y in DataLoader(Data(), args.rows):
            if args.clear == "hand":
                for parameter in parameters:
                    parameter.grad = None
            elif args.clear == "module":
                model.zero_grad()
            else:
                [optimizer.zero_grad() for optimizer in optimizers]
            with cast:
                output = model(x).float()
            loss = said(torch.nn.functional.mse_loss(output, y) * args.larger)
            if args.closure:
                loss.backward()
                optimizers[0].step(lambda loss=loss: loss)
                continue
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
                if args.clip:
                    torch.nn.utils.clip_grad_norm_(parameters, args.clip)
                scaler.step(optimizer)
            scaler.update()
            if args.schedule == "batch":
                schedule.step()
        if args.schedule == "epoch":
            schedule.step()
    print("rate", [optimizer.param_groups[0]["lr"] for optimizer in optimizers])
    print("weights", *[value.item() for parameter in parameters for value in parameter.flatten()])
    end(model)


if __name__ == "__main__":
    main()
