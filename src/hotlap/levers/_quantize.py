"""Not a lever: weights of linear layers replaced by torchao's, with the error that this makes in the output."""

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ._effects import eagerly, storage, strange, watched
from ._forward_graph import relative_error

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

LEAST_FEATURES: Final = 256
"""Smaller layers cost more for their scales than they win, as torchao's own documents say of small ones."""
LEAST_TORCHAO: Final = (0, 17)
LEAST_TORCH: Final = (2, 11)
MEASURED: Final = 4
"""Forwards whose outputs are compared with those of the weights as they were."""
MOST_ERROR: Final = 0.5
"""Relative. Beyond it an output has more of the rounding than would pass for an approximation."""
ERRORS: Final = (RuntimeError, AssertionError, TypeError, ValueError, AttributeError, ImportError)
"""What torchao raises where a layer or a device is not what it takes."""


def ready() -> None:
    """Import torchao, without a word on the script's stderr. Raises Refused where it is missing or too old."""
    import importlib.util
    from importlib.metadata import version

    import torch

    from hotlap.agent.seams import Refused

    if importlib.util.find_spec("torchao") is None:
        raise Refused("torchao is not installed in the command's environment: pip install torchao")
    if _numbers(torch.__version__) < LEAST_TORCH:
        raise Refused(f"torch {torch.__version__} is older than 2.11, which torchao's stable interface needs")
    if _numbers(version("torchao")) < LEAST_TORCHAO:
        raise Refused(f"torchao {version('torchao')} is older than 0.17, the first for any torch from 2.11 on")


def _numbers(text: str) -> tuple[int, ...]:
    """Of a version, the first two."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:2])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """torchao warns of extensions that it does not find, which are not used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def config(how: str, dtype: Any) -> Any:
    """torchao's, for weights of a dtype."""
    import torch

    with _silent():
        from torchao import quantization as ao

    # It would set options of Inductor for the whole process, which other levers and the script may have set.
    if how == "int8-weight":
        return ao.Int8WeightOnlyConfig(set_inductor_config=False)
    if how == "int8-dynamic":
        return ao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    granularity = ao.PerRow() if dtype == torch.bfloat16 else ao.PerTensor()  # torchao has rows for bfloat16 only
    return ao.Float8DynamicActivationFloat8WeightConfig(granularity=granularity, set_inductor_config=False)


def large_layers(root: Any, how: str) -> tuple[list[Any], str]:
    """Linear layers of a model whose weights may be replaced; why there are none."""
    import torch

    linear = [part for part in root.modules() if isinstance(part, torch.nn.Linear)]
    large = [part for part in linear if min(part.in_features, part.out_features) >= LEAST_FEATURES]
    if not large:
        return [], f"no linear layer has {LEAST_FEATURES} inputs and outputs or more"
    uses: dict[int, int] = {}
    for _, tensor in root.named_parameters(remove_duplicate=False):
        uses[storage(tensor)] = uses.get(storage(tensor), 0) + 1
    alone = [part for part in large if uses.get(storage(part.weight), 1) == 1]
    if not alone:
        return [], "its large linear layers share their weights with other modules"
    fit = [part for part in alone if _plain(part) and (how != "float8-dynamic" or not _odd(part))]
    if not fit:
        return [], "its large linear layers are of classes, dtypes or sizes that can't be quantized"
    return fit, ""


def _plain(layer: Any) -> bool:
    """Whether it is torch's own layer, and nothing of it is made anew at each call, as weight_norm does."""
    import torch

    kinds = (torch.float32, torch.bfloat16, torch.float16)
    made = torch.nn.utils.parametrize.is_parametrized(layer) or layer._forward_pre_hooks or layer._forward_hooks
    return type(layer) is torch.nn.Linear and not made and layer.weight.dtype in kinds


def _odd(layer: Any) -> bool:
    """The float8 products of the device take multiples of 16."""
    return bool(layer.in_features % 16 or layer.out_features % 16)


class Quantized:
    """Wraps forwards. unsteady: called in calls that are measured; measured: told of the error; gave_up: told why a
    model is left as it is."""

    def __init__(
        self,
        how: str,
        *,
        unsteady: Callable[[], None],
        measured: Callable[[dict[str, Any]], None],
        gave_up: Callable[[str], None],
    ) -> None:
        self.how = how
        self._unsteady, self._measured, self._gave_up = unsteady, measured, gave_up
        self._own: dict[int, Forward] = {}

    def inside(self, module: Any, forward: "Forward") -> "Forward":
        """Remember a module's own forward, before other levers wrap it."""
        self._own[id(module)] = forward
        return forward

    def outside(self, module: Any, forward: "Forward") -> "Forward":
        """The forward with all that wraps it, on quantized weights."""
        own, reference, weights = self._own.pop(id(module)), weakref.ref(module), Weights(self.how)
        errors: list[float] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            import torch

            if weights.quantized and torch.is_grad_enabled():
                self._gave_up(weights.put_back())
            if weights.left_alone or len(errors) >= MEASURED or torch.is_grad_enabled():
                return forward(*args, **kwargs)
            self._unsteady()
            if not errors:
                exact, why = weights.look(reference(), own, args, kwargs)
            else:
                exact, why = weights.exact(own, args, kwargs), ""
            if not why:
                output, why = weights.compare(forward, exact, errors, args, kwargs)
            if why:
                weights.restore()
                self._gave_up(why)
                return exact
            if len(errors) == MEASURED:
                self._measured(weights.report(errors))
                weights.free()
            return output

        return call


class Weights:
    """The weights of one model, as they were and as they are."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.left_alone = False
        self._layers: list[tuple[Any, Any, Any]] = []
        self._freed: list[tuple[Callable[[], Any], Callable[[], Any]]] = []

    @property
    def quantized(self) -> bool:
        """Whether the model is not as it was."""
        return bool(self._layers or self._freed)

    def look(self, module: Any, own: "Forward", args: Any, kwargs: Any) -> tuple[Any, str]:
        """The output of the model as it is, and why it has to stay so; "" where its weights are quantized now."""
        exact, effects = watched(module, own, args, kwargs)
        why = effects.state and f"{effects.state}, so it can't be run twice to measure the output's error"
        if not why and (other := strange(exact)):
            why = f"the forward returns an object of class {other}, whose error can't be measured"
        layers, none = large_layers(module, self.how)
        why = why or none
        return exact, why or self._quantize(layers)

    def _quantize(self, layers: list[Any]) -> str:
        """Replace the weights; why that failed, with nothing replaced."""
        try:
            with _silent():
                from torchao.quantization import quantize_

                for layer in layers:
                    before = layer.weight
                    quantize_(layer, config(self.how, before.dtype), filter_fn=lambda part, name: True)
                    if layer.weight is not before:
                        self._layers.append((layer, before, layer.weight))
        except ERRORS as error:
            self.restore()
            return f"torchao could not quantize it: {_line(error)}"
        return "" if self._layers else "torchao left all of its layers as they are"

    def exact(self, own: "Forward", args: Any, kwargs: Any) -> Any:
        """The output with the weights as they were."""
        self._put(before=True)
        try:
            with eagerly():
                return own(*args, **kwargs)
        finally:
            self._put(before=False)

    def compare(self, forward: "Forward", exact: Any, errors: list[float], args: Any, kwargs: Any) -> tuple[Any, str]:
        """The output with quantized weights, and why it can't be used, "" if it can; its error is noted."""
        try:
            output = forward(*args, **kwargs)
        except ERRORS as error:  # the forward itself has just run with these arguments
            return None, f"the forward can't use quantized weights: {_line(error)}"
        off = output_error(output, exact)
        if off is None:
            return None, "the forward returns no numbers whose error could be measured"
        if not off <= MOST_ERROR:
            return None, f"the output is off by {off:.0%} (relative), more than {MOST_ERROR:.0%}"
        errors.append(off)
        return output, ""

    def report(self, errors: list[float]) -> dict[str, Any]:
        """What is known of the error. relative: mean over the forwards, of norms."""
        return {
            "relative": sum(errors) / len(errors),
            "largest": max(errors),
            "forwards": len(errors),
            "layers": len(self._layers),
        }

    def _put(self, before: bool) -> None:
        for layer, was, now in self._layers:
            layer._parameters["weight"] = was if before else now

    def restore(self) -> None:
        """Leave the model as it was, for good."""
        self._put(before=True)
        self._layers, self._freed, self.left_alone = [], [], True

    def free(self) -> None:
        """Let the weights go that are not in use."""
        self._freed = [(weakref.ref(layer), weakref.ref(was)) for layer, was, _ in self._layers]
        self._layers = []

    def put_back(self) -> str:
        """For gradients: the weights as they were, for good; those that were freed only where something else, such as
        an optimizer, has them. What is to be told of that."""
        gone = [layer for layer, was in self._freed if was() is None]
        for layer, was in [(layer(), was()) for layer, was in self._freed]:
            if layer is not None and was is not None:
                layer._parameters["weight"] = was
        self.restore()
        said = "a forward ran with gradients, for which the weights are as they were again"
        return f"{said}, but for {len(gone)} layers whose own are gone" if gone else said


def output_error(output: Any, exact: Any) -> float | None:
    """The largest relative error among the floating-point tensors of an output; None where there is none.

    NaN where shapes differ.
    """
    import torch
    from torch.utils import _pytree

    pairs = zip(_pytree.tree_leaves(output), _pytree.tree_leaves(exact), strict=False)
    found = [
        relative_error(one, other) if one.shape == other.shape else float("nan")
        for one, other in pairs
        if isinstance(other, torch.Tensor) and other.is_floating_point() and other.numel()
    ]
    return max(found, key=lambda error: (math.isnan(error), error)) if found else None


def _line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0][:200]
