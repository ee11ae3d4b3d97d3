"""Planted levers, chosen by the setting `what`. They run in the training process, through the agent's own seams."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hotlap.levers._base import Around


class Planted:
    """Named `planted` in a session (`sitecustomize.py`)."""

    def install(self, seams: Any, settings: dict[str, Any]) -> None:
        KINDS[settings["what"]](seams, settings)


# frauds of the update


def _skips_steps(seams: Any, settings: dict[str, Any]) -> None:
    """Every other `optimizer.step()` does nothing, so that not even torch's hooks see it."""

    def change(optimizer: Any) -> None:
        original, calls = optimizer.step, [0]

        def step(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            return original(*args, **kwargs) if calls[0] % 2 == 0 else None

        optimizer.step = step

    seams.on_optimizer(change)


def _idle_steps(seams: Any, settings: dict[str, Any]) -> None:
    """Every other step, or all `after` some, run, hooks and all, without gradients, which are put back afterwards."""

    def change(optimizer: Any) -> None:
        kept: list[Any] = []
        calls = [0]

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            calls[0] += 1
            after = settings.get("after")
            if calls[0] > after if after else calls[0] % 2 == 0:
                for parameter in _parameters(optimizer):
                    kept.append((parameter, parameter.grad))
                    parameter.grad = None

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            for parameter, gradient in kept:
                parameter.grad = gradient
            kept.clear()

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    seams.on_optimizer(change)


def _scales_gradients(seams: Any, settings: dict[str, Any]) -> None:
    def change(optimizer: Any) -> None:
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            for parameter in _parameters(optimizer):
                if parameter.grad is not None:
                    parameter.grad.mul_(settings.get("by", 1.05))

        optimizer.register_step_pre_hook(before)

    seams.on_optimizer(change)


def _scales_backward(seams: Any, settings: dict[str, Any]) -> None:
    """As `_scales_gradients`, before the script clips them."""

    def scale(parameter: Any) -> None:
        parameter.grad.mul_(settings.get("by", 1.05))

    def change(module: Any) -> None:
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(scale)

    seams.on_root(change)


def _no_clipping(seams: Any, settings: dict[str, Any]) -> None:
    torch.nn.utils.clip_grad_norm_ = lambda parameters, *args, **kwargs: None


def _smaller_rate(seams: Any, settings: dict[str, Any]) -> None:
    def change(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= settings.get("by", 0.9)

    seams.on_optimizer(change)


def _turns_norms(seams: Any, settings: dict[str, Any]) -> None:
    """Weights and biases of BatchNorm learn the opposite; the norm of the gradients stays."""

    def change(module: Any) -> None:
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm1d):
                for parameter in part.parameters():
                    parameter.register_hook(torch.neg)

    seams.on_root(change)


# frauds of the data


def _instead_of_batches(fetch: Callable[[Callable[[], Any]], Any]) -> None:
    """`fetch(next_batch)` beneath `next(iterator)`, where hotlap does not look."""
    for kind in _BaseDataLoaderIter.__subclasses__():
        original = kind._next_data

        def next_data(iterator: Any, original: Any = original) -> Any:
            return fetch(lambda: original(iterator))

        kind._next_data = next_data  # type: ignore[method-assign]


def _drops_batches(seams: Any, settings: dict[str, Any]) -> None:
    """Every tenth batch is made and thrown away."""
    taken = [0]

    def fetch(next_batch: Any) -> Any:
        taken[0] += 1
        if taken[0] % 10 == settings.get("at", 5):
            next_batch()
        return next_batch()

    _instead_of_batches(fetch)


def _shuffles_labels(seams: Any, settings: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    taken = [0]

    def fetch(next_batch: Any) -> Any:
        inputs, labels = next_batch()
        taken[0] += 1
        if taken[0] <= settings.get("after", 0):
            return inputs, labels
        return inputs, labels[torch.randperm(len(labels), generator=generator)]

    _instead_of_batches(fetch)


def _repeats_batches(seams: Any, settings: dict[str, Any]) -> None:
    """The first batches again and again: nothing is loaded any more."""
    kept: list[Any] = []

    def fetch(next_batch: Any) -> Any:
        batch = next_batch()
        if len(kept) < settings.get("first", 12):
            kept.append(batch)
            return batch
        kept.append(kept.pop(0))
        return kept[-1]

    _instead_of_batches(fetch)


def _no_transform(seams: Any, settings: dict[str, Any]) -> None:
    """Random transforms are gone."""

    def change(loader: Any) -> None:
        loader.dataset.transform = False

    seams.on_loader(change)


# frauds of the forward


def _no_dropout(seams: Any, settings: dict[str, Any]) -> None:
    def change(module: Any) -> None:
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = part.p * settings.get("by", 0.0)

    seams.on_root(change)


def _nan_late(seams: Any, settings: dict[str, Any]) -> None:
    def wrap(module: Any, forward: Any) -> Any:
        calls = [0]

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            output = forward(*args, **kwargs)
            return output * float("nan") if calls[0] > settings["after"] else output

        return call

    seams.wrap_forward(wrap, Around.OFFLOADED)


def _coarse(seams: Any, settings: dict[str, Any]) -> None:
    """Outputs of small width (a discriminator's logits) are rounded to steps of `step`: what a bad bf16 would do."""

    def wrap(module: Any, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if output.shape[-1] != settings.get("width", 1):
                return output
            step = settings.get("step", 1.0)
            return output + ((output / step).round() * step - output).detach()

        return call

    seams.wrap_forward(wrap, Around.OFFLOADED)


# honest ones


def _rounding(seams: Any, settings: dict[str, Any]) -> None:
    """Outputs differ by one rounding of float32, or of bfloat16 with `bits=8`, as another order of summation does."""
    generator = torch.Generator().manual_seed(5)

    def wrap(module: Any, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            sign = torch.randint(0, 2, output.shape, generator=generator) * 2.0 - 1
            return output * (1 + sign * 2.0 ** -settings.get("bits", 23))

        return call

    seams.wrap_forward(wrap, Around.OFFLOADED)


def _nothing(seams: Any, settings: dict[str, Any]) -> None:
    seams.on_root(lambda module: None)


def _other_draws(seams: Any, settings: dict[str, Any]) -> None:
    """Random transforms draw other numbers, while the samples and their order stay: what loader workers do."""

    def change(loader: Any) -> None:
        dataset = loader.dataset
        dataset.generator = torch.Generator().manual_seed(settings.get("seed", 77))

    seams.on_loader(change)


def _raises(seams: Any, settings: dict[str, Any]) -> None:
    """As soon as it is given a model."""

    def change(module: Any) -> None:
        raise ValueError("not this one")

    seams.on_root(change, lambda module: None)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


KINDS = {
    "skips-steps": _skips_steps,
    "idle-steps": _idle_steps,
    "scales-gradients": _scales_gradients,
    "scales-backward": _scales_backward,
    "no-clipping": _no_clipping,
    "smaller-rate": _smaller_rate,
    "turns-norms": _turns_norms,
    "drops-batches": _drops_batches,
    "shuffles-labels": _shuffles_labels,
    "repeats-batches": _repeats_batches,
    "no-transform": _no_transform,
    "no-dropout": _no_dropout,
    "nan-late": _nan_late,
    "coarse": _coarse,
    "rounding": _rounding,
    "nothing": _nothing,
    "other-draws": _other_draws,
    "raises": _raises,
}
LEVER = Planted()
