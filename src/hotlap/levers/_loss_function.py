"""Not a lever: a function that makes a loss, compiled, and its own way wherever that might not be the same.

For autograd the compiled function is one node, whose inputs are the tensors among the arguments that need a gradient.
Its backward is the compiled one; where the script keeps the graph for another, or asks for gradients that can be
differentiated, the function is computed once more as it was written. So compiled are only functions of one result, a
tensor, that read no other tensors that need a gradient. What is compiled is looked at each time that the compiler is
asked: graphs that draw random numbers, or write into what the function was given, are not, nor more than MOST_GRAPHS.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._effects import PLAIN, storage, written_by
from ._forward_graph import tried

MOST_GRAPHS: Final = 4
"""Of other shapes or numbers. Each takes seconds; torch itself gives up after 8."""
PLAINLY: Final = (*PLAIN, torch.dtype, torch.device, torch.Size)
CONTAINERS: Final = (list, tuple, dict)
DEEPEST: Final = 8
"""Containers in one another; what is further inside is a leaf, and none that is fit."""


class Stays(Exception):
    """Why a function is not compiled."""


class LossFunction:
    """In place of a function. ordinary: how it is called otherwise; stays: called once with the reason, and whether it
    was compiled until then; suits: whether it may be compiled in a call."""

    def __init__(
        self,
        function: Callable[..., Any],
        ordinary: Callable[..., Any],
        stays: Callable[[str, bool], None],
        suits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.function, self.ordinary = function, ordinary
        self.off = False
        self.calls = self.graphs = 0
        self._stays, self._suits = stays, suits
        self._compiled: Callable[..., Any] | None = None
        self._leaves, self._unfit = 0, ""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self.off or not (torch.is_grad_enabled() and _calm() and self._suits()):
            return self.ordinary(*args, **kwargs)
        leaves, spec = _flat((args, kwargs))
        if not all(type(leaf) in {torch.Tensor, torch.nn.Parameter} or type(leaf) in PLAINLY for leaf in leaves):
            self._give_up("it is given something else than tensors, numbers and words")
            return self.ordinary(*args, **kwargs)
        needing = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not needing:
            return self.ordinary(*args, **kwargs)
        if self._compiled is None:
            return self._first(leaves, spec, args, kwargs)
        call = Call(self, args, kwargs, leaves, needing)
        self._leaves, self._unfit = len(needing), ""
        made, failed = tried(call.compiled)
        if failed:  # in the compiler, or of the function itself, which then fails again
            self._give_up(self._unfit or f"it can't be compiled: {failed}")
            return self.ordinary(*args, **kwargs)
        if type(made) is not torch.Tensor or not made.requires_grad:  # in this call it may be another way
            return made if call.plain(made) else self.ordinary(*args, **kwargs)
        self.calls += 1
        call.made = made
        return _Node.apply(call, *(leaves[at] for at in needing))

    def _first(self, leaves: list[Any], spec: Any, args: Any, kwargs: Any) -> Any:
        """A call as it was written: what it returns, and whether its arguments are as they were."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        versions = [tensor._version for tensor in tensors]
        made = self.ordinary(*args, **kwargs)
        if versions != [tensor._version for tensor in tensors] or _flat((args, kwargs))[1] != spec:
            self._give_up("it writes into what it is given")
        elif type(made) is not torch.Tensor or not made.requires_grad:
            self._give_up("it returns something else than one tensor that has a gradient")
        elif any(made is tensor for tensor in tensors):
            self._give_up("it returns what it is given")
        else:
            self._compiled = torch.compile(self.function, fullgraph=True, backend=self._backend)
        return made

    def compiled(self, args: Any, kwargs: Any) -> Any:
        """Raises whatever the compiler does."""
        assert self._compiled is not None, "the first call was an ordinary one"
        return self._compiled(*args, **kwargs)

    def _backend(self, graph: Any, inputs: Any) -> Any:
        """Inductor, for graphs that are fit."""
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        many = f"it was compiled anew {MOST_GRAPHS} times" if self.graphs > MOST_GRAPHS else ""
        self._unfit = many or _unfit(graph, self._leaves)
        if self._unfit:
            raise Stays(self._unfit)
        return compile_fx(graph, inputs)

    def _give_up(self, why: str) -> None:
        self.off = True
        self._compiled = None
        self._stays(f"{self.function.__qualname__} stays as it is: {why}", self.calls > 0)


@dataclass
class Call:
    """One of a function. needing: of its flat arguments those that need a gradient; inner: what is in their place in
    the compiled call; made: what that returned."""

    of: LossFunction
    args: Any
    kwargs: Any
    leaves: list[Any]
    needing: list[int]
    inner: tuple[Any, ...] = ()
    made: Any = None

    def compiled(self) -> Any:
        """With tensors of its own in the place of those that need a gradient. Raises Stays where it changed lists or
        dictionaries that hold such tensors."""
        self.inner = tuple(self.leaves[at].detach().requires_grad_() for at in self.needing)
        args, kwargs = given = self._with(self.inner)
        spec = _flat(given)[1]
        made = self.of.compiled(args, kwargs)
        if _flat(given)[1] != spec:
            raise Stays("it writes into what it is given")
        return made

    def ordinary(self, tensors: Any) -> Any:
        args, kwargs = self._with(tensors)
        return self.of.function(*args, **kwargs)

    def plain(self, made: Any) -> bool:
        """Whether nothing of what was made hangs on the tensors of its own."""
        leaves = _pytree.tree_leaves(made)
        return all(type(one) in PLAINLY or (type(one) is torch.Tensor and not one.requires_grad) for one in leaves)

    def _with(self, tensors: Any) -> Any:
        """The arguments with others of their tensors. What holds none of these stays the object that it is."""
        leaves = list(self.leaves)
        for at, tensor in zip(self.needing, tensors, strict=True):
            leaves[at] = tensor
        return _put((self.args, self.kwargs), iter(leaves), DEEPEST)


class _Node(torch.autograd.Function):  # type: ignore[misc]
    """What autograd sees."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return call.made.detach().clone()  # which the script may write into

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        call: Call | None = ctx.call
        again = torch.is_grad_enabled()
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        if call is None or again or keep:  # as it was written: what the compiler makes is differentiated once
            tensors = ctx.saved_tensors  # raises where the graph was freed
            assert call is not None, "its tensors were not freed"
            with torch.enable_grad():
                # Tensors of their own, since one may be given twice.
                leaves = [tensor.view_as(tensor) if again else tensor.detach().requires_grad_() for tensor in tensors]
                made = call.ordinary(leaves)
                return None, *torch.autograd.grad(made, leaves, gradient, create_graph=again, allow_unused=True)
        ctx.call = None
        run = torch.autograd.Variable._execution_engine.run_backward  # past what is patched: a backward runs already
        found = run((call.made,), (gradient,), False, False, call.inner, allow_unreachable=True, accumulate_grad=False)
        return None, *found


class _Looking(TorchDispatchMode):  # type: ignore[misc]
    """At the ops of a graph. given: storages that it gets."""

    supports_higher_order_operators = True

    def __init__(self, given: set[int]) -> None:
        super().__init__()
        self.given, self.why = given, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            self.why = self.why or f"it calls {func.name()}"
        elif torch.Tag.nondeterministic_seeded in func.tags:
            self.why = self.why or "it draws random numbers"
        elif any(storage(tensor) in self.given for tensor in written_by(func, args, kwargs)):
            self.why = self.why or "it writes into what it is given"
        return func(*args, **kwargs)


def _unfit(graph: Any, leaves: int) -> str:
    """Why a captured graph is not to be compiled, "" if it may be. leaves: tensors that need a gradient which the
    function was given."""
    nodes = list(graph.graph.nodes)
    inputs = [node.meta.get("example_value") for node in nodes if node.op == "placeholder"]
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    mode = next((one.fake_mode for one in tensors if hasattr(one, "fake_mode")), None)
    if mode is None or any(one is None for one in inputs):
        return "what it is given is not known"
    if sum(one.requires_grad for one in tensors) > leaves:
        return "it reads tensors that need a gradient, beside what it is given"
    with mode, _Looking(set(map(storage, tensors))) as looking, torch.enable_grad():
        made = graph(*inputs)
    if sum(one.requires_grad for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor)) != 1:
        return "it makes more than one tensor that has a gradient"
    why: str = looking.why
    return why


def _calm() -> bool:
    """Whether nothing is on that sees or changes each op (a mode, a transform such as `vmap`), nor the compiler told
    what to do."""
    from torch._dynamo import config
    from torch._dynamo.eval_frame import _stance

    modes = torch._C._len_torch_dispatch_stack() or not all(map(_device, _get_current_function_mode_stack()))
    transform = torch._C._functorch.peek_interpreter_stack()
    return not modes and transform is None and not config.disable and _stance.stance == "default"


def _device(mode: Any) -> bool:
    """Whether it is that of `torch.set_default_device`."""
    return isinstance(mode, torch.utils._device.DeviceContext)


# Functions of their own: one inside of another that calls itself would keep its tensors until Python's collector comes.


def _flat(given: Any) -> tuple[list[Any], Any]:
    """What is in nested containers, and their structure."""
    leaves: list[Any] = []
    return leaves, _take(given, leaves, DEEPEST)


def _take(item: Any, leaves: list[Any], deep: int) -> Any:
    if type(item) in CONTAINERS and deep:
        inside = item.values() if type(item) is dict else item
        return type(item), tuple(item) if type(item) is dict else (), [_take(one, leaves, deep - 1) for one in inside]
    leaves.append(item)
    return None


def _put(item: Any, leaves: Iterator[Any], deep: int) -> Any:
    if type(item) not in CONTAINERS or not deep:
        return next(leaves)
    inside = list(item.values()) if type(item) is dict else list(item)
    made = [_put(one, leaves, deep - 1) for one in inside]
    if all(map(operator.is_, made, inside)):
        return item
    return dict(zip(item, made, strict=True)) if type(item) is dict else type(item)(made)


LOSSES: Final[dict[str, LossFunction]] = {}
"""Those of functions. Other code finds them here, as a compiler can follow it."""


def _template(*args: Any, **kwargs: Any) -> Any:
    from hotlap.levers._loss_function import LOSSES

    return LOSSES["which"](*args, **kwargs)


def trampoline(code: CodeType, call: LossFunction) -> CodeType:
    """Code that calls something else, for a function that stays the object that it is: its other names, pickles of it
    and comparisons are of that."""
    key, own = str(len(LOSSES)), _template.__code__
    LOSSES[key] = call
    return own.replace(
        co_consts=tuple(key if one == "which" else one for one in own.co_consts),
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
