"""Not a lever: small tensors that a forward makes of Python's numbers, the same ones at each call, kept on the device.

`torch.tensor([0.1, 0.2], device=x.device)`, `x[:, [0, 2, 5]]`, and `x[:, rows, columns]` with `rows` and `columns` made
on the host, each copy from pageable memory, for which the host waits, and which no CUDA graph may hold. Here what was
made once is found by its content: the bytes of the numbers as `marshal` writes them, with their types and nesting.

What the script gets is a copy, made where it is wanted, so nothing that it does to it is seen by anyone else; only as
an index, which nobody else sees, what is kept is used itself. Kept for good, as CUDA graphs may have been recorded with
it: once there is no room no more are kept, and all others are made as ever. A tensor on the host is known as made of
numbers, with its views, until the forward ends, and taken for what is kept if it still equals it.

Functions of `torch` are replaced while an outermost forward runs, in whatever thread, and look whether it is theirs.
That costs nothing elsewhere, but a name that the script imported (`from torch import tensor`) is not seen. Methods of
tensors can't be replaced: with a `__getitem__` in Python `torch.Tensor` is a sequence to C, and `torch.tensor([a, b])`
of two tensors fails from then on. So they are seen by a `TorchFunctionMode`, which costs each call under it (1.4 µs on
a CPU, several for functions of `torch.nn.functional`): from the first tensor on that is made of numbers on the host, as
nothing else is of concern, or from the beginning where the code of the model indexes by lists or calls `new_tensor`.

Where the compiler traces, in a forward, all is put back for good: what it compiles looks at each call whether
`torch.tensor` and the modes are those that it saw.
"""

import contextlib
import functools
import marshal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from . import _transforms
from ._effects import storage

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward

MOST: Final = 256
"""Contents that are kept."""
MOST_BYTES: Final = 1 << 18
"""Of one content, as marshal writes it: some 50000 numbers."""
ALL_BYTES: Final = 1 << 24
PATIENCE: Final = 8
"""Outermost forwards in which something must have been given."""
AWAY: Final = ("cuda",)
"""Types of devices to which a copy is waited for."""
LOOKS_ON: Final = ("hotlap.levers._effects",)
"""Modules with dispatch modes that see real tensors and change nothing; under others all is made as ever."""
OF_NUMBERS: Final = ("arange", "tril_indices", "triu_indices")
"""Functions of numbers, whose result is on the host where no device is named; with the names of what they are given."""
NUMBERS: Final = (bool, int, float)
MARSHAL: Final = 2
"""The version before objects are told apart by identity: bytes are those of the content alone."""
COMPILED: Final = "something in the forward is compiled"
NONE_SEEN: Final = "no tensor made of Python's numbers was seen going to the device"

Key = tuple[Any, ...]


@dataclass
class Kept:
    """key: by which it is found; host: the tensor on the host; copies: those on devices, by device and dtype."""

    key: Key
    host: Any
    copies: dict[Any, Any] = field(default_factory=dict)


def frozen(data: Any) -> bytes | None:
    """The content of a number or a nest of them, None of what surely is neither."""
    if type(data) not in {list, tuple, *NUMBERS}:
        return None
    try:
        return marshal.dumps(data, MARSHAL)
    except ValueError:  # tensors, arrays of objects, a list that holds itself
        return None


def plain(data: Any) -> bool:
    """Whether it is a number or a nest of them. What has the same bytes as such a nest (`frozen`) is one as well."""
    return all(map(plain, data)) if type(data) in {list, tuple} else type(data) in NUMBERS


class Constants:
    """What is kept, and what stands in the place of torch's functions.

    gave_up: called with the reason, once, where the forward has nothing to keep; slow: called where something is made
    that later calls find.
    """

    def __init__(self, gave_up: Callable[[str], None], slow: Callable[[], None] = lambda: None) -> None:
        self.gave_up, self.slow = gave_up, slow
        self.forwards = self.used = self.by_mode = self.bytes = 0
        self.out = False
        self.kept: dict[Key, Kept] = {}
        self._made: dict[int, tuple[Any, Kept]] = {}
        """Tensors on the host that were made in this forward, by storage; they live until it ends."""
        self._thread: int | None = None
        self._functions: dict[str, tuple[Any, Any]] = {}
        """By name torch's own, and what stands in its place."""
        self._mode: Any = None
        self._modes = 0
        """On the stack when the forward began."""

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward."""
        from hotlap.agent.model_code import ModelCode
        from hotlap.agent.seams import Refused

        devices = {p.device.type for p in module.parameters()}
        if not devices.intersection(AWAY):
            raise Refused("the model is not on a CUDA device")
        if not self._functions:
            self._fill()
        whole = ModelCode(module.modules()).indexes_by_list

        def with_kept(*args: Any, **kwargs: Any) -> Any:
            if self.out or self._thread is not None or not _ordinary():
                return forward(*args, **kwargs)
            self._enter(whole)
            try:
                return forward(*args, **kwargs)
            finally:
                self._exit()

        return with_kept

    def _enter(self, whole: bool) -> None:
        """whole: the mode is wanted from the beginning."""
        import torch

        self._thread, self._modes = get_ident(), torch._C._len_torch_function_stack()
        for name, (original, own) in self._functions.items():
            if getattr(torch, name) is original:
                setattr(torch, name, own)
        if whole:
            self._look()

    def _exit(self) -> None:
        self._put_back()
        self._thread = None
        self._made.clear()
        self.forwards += 1
        if self.forwards == PATIENCE and not self.used:
            self._leave(NONE_SEEN)

    def _look(self) -> None:
        """From here on, until the forward ends, the mode sees what is done: not where the script has put another on
        the stack meanwhile, which it will want to find on top."""
        import torch

        wanted = self.by_mode or self.forwards < PATIENCE
        if wanted and self._mode is not None and torch._C._len_torch_function_stack() == self._modes:
            self._mode.__enter__()

    def _put_back(self) -> None:
        """All is as it was."""
        import torch

        for name, (original, own) in self._functions.items():
            if getattr(torch, name) is own:
                setattr(torch, name, original)
        depth = torch._C._len_torch_function_stack()
        if depth > self._modes and torch._C._get_function_stack_at(depth - 1) is self._mode:
            self._mode.__exit__(None, None, None)

    def _leave(self, why: str) -> None:
        if not self.out:
            self.out = True
            self._put_back()
            self.gave_up(why)

    def _compiler_begins(self, *_: Any) -> None:
        if self._thread == get_ident():
            self._leave(COMPILED)

    # what stands in place

    def _fill(self) -> None:
        """Make what stands in place of torch's."""
        import torch
        import torch._dynamo  # its tables hold torch's functions by identity; optimizers have imported it before
        from torch.utils._device import _device_constructors

        _device_constructors()  # likewise
        torch._dynamo.callback.callback_handler.register_start_callback(self._compiler_begins)
        self._tensor, self._mode = torch.tensor, self._new_mode()
        for name in ("tensor", "as_tensor"):
            self._functions[name] = getattr(torch, name), self._making(getattr(torch, name))
        for name in OF_NUMBERS:
            self._functions[name] = getattr(torch, name), self._counting(getattr(torch, name))

    def _new_mode(self) -> Any:
        import torch
        from torch.overrides import TorchFunctionMode

        of = torch.Tensor
        places: dict[Any, Callable[..., Any]] = {
            of.__getitem__: self._getting,
            of.__setitem__: self._setting,
            of.new_tensor: self._making_like,
            of.to: functools.partial(self._moving, False),
            of.cuda: functools.partial(self._moving, True),
        }

        class Look(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                own = places.get(func)
                if own is None or type(args[0]) not in (of, torch.nn.Parameter):
                    return func(*args, **(kwargs or {}))
                return own(func, *args, **(kwargs or {}))

        return Look()

    def _mine(self) -> bool:
        """Whether this is in the forward, and nothing else of torch's stands around the call."""
        return self._thread == get_ident() and not self.out and _usual()

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.tensor, torch.as_tensor."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            if 0 < len(args) <= 3:
                named = dict(zip(("dtype", "device"), args[1:], strict=False), **kwargs)
                found = self._made_of(args[0], named, None)
                if found is not None:
                    return found
            return original(*args, **kwargs)

        return make

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Functions of numbers, on the host."""

        @functools.wraps(original)
        def count(*args: Any, **kwargs: Any) -> Any:
            if not kwargs and self._mine() and self._default_device().type == "cpu":
                kept = self._find(args, original.__name__, lambda: original(*args))
                if kept is not None:
                    return self._on_host(kept)
            return original(*args, **kwargs)

        return count

    def _making_like(self, original: Callable[..., Any], like: Any, *args: Any, **kwargs: Any) -> Any:
        """Tensor.new_tensor."""
        found = self._made_of(args[0], kwargs, like) if len(args) == 1 else None
        if found is None:
            return original(like, *args, **kwargs)
        self.by_mode += 1
        return found

    def _getting(self, original: Callable[..., Any], tensor: Any, index: Any) -> Any:
        """Tensor.__getitem__."""
        return original(tensor, self._index(tensor, index))

    def _setting(self, original: Callable[..., Any], tensor: Any, index: Any, value: Any) -> Any:
        """Tensor.__setitem__."""
        return original(tensor, self._index(tensor, index), value)

    def _moving(self, cuda: bool, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Tensor.to and Tensor.cuda."""
        found = self._moved(tensor, cuda, args, kwargs) if self._made else None
        if found is None:
            return original(tensor, *args, **kwargs)
        self.by_mode += 1
        return found

    # what they give; None: as ever

    def _made_of(self, data: Any, named: dict[str, Any], like: Any) -> Any:
        """A tensor made of numbers. like: of which the dtype and the device are taken where none is named."""
        dtype, device = named.get("dtype"), named.get("device")
        if named.keys() - {"dtype", "device"} or not self._mine():
            return None
        if like is not None:
            dtype, device = dtype or like.dtype, like.device if device is None else device
        own = self._default_device() if device is None else _device(device)
        on_host = own is not None and own.type == "cpu" and device is None
        if own is None or not (on_host or own.type in AWAY):
            return None
        kept = self._find(data, dtype, lambda: self._tensor(data, dtype=dtype, device="cpu"))
        if kept is None:
            return None
        return self._on_host(kept) if on_host else self._copy(kept, own, kept.host.dtype)

    def _index(self, tensor: Any, index: Any) -> Any:
        """An index with what is kept on the device in the places of what lies on the host."""
        import torch

        kind = type(index)
        if kind is tuple:
            if all(type(item) is not list and type(item) is not torch.Tensor for item in index):
                return index
        elif kind is not list and kind is not torch.Tensor:
            return index
        # Hooks on what is saved, such as those of checkpointing, see the index, and the same one in each run.
        if tensor.device.type not in AWAY or not self._mine() or _saved_tensors_hooked():
            return index
        if kind is tuple:
            return tuple(self._index_on(tensor.device, item) for item in index)
        return self._index_on(tensor.device, index)

    def _index_on(self, device: Any, item: Any) -> Any:
        import torch

        kept = None
        if type(item) is list:
            kept = self._find(item, "index", lambda: self._tensor(item) if set(map(type, item)) == {int} else None)
        elif type(item) is torch.Tensor and item.dtype in (torch.int64, torch.int32) and item.dim():
            kept = self._known(item)
        on = None if kept is None else self._on(kept, device, kept.host.dtype)
        if on is None:
            return item
        self.by_mode += 1
        return on

    def _moved(self, tensor: Any, cuda: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        import torch

        kept = self._known(tensor) if self._mine() else None
        named = {name: value for name, value in kwargs.items() if name != "non_blocking"}
        if kept is None or named.keys() - {"device", "dtype"} or len(args) > 2 - cuda:
            return None
        for value in args:
            if isinstance(value, torch.Tensor) and len(args) == 1:
                named |= {"device": value.device, "dtype": value.dtype}
            else:
                named["dtype" if isinstance(value, torch.dtype) else "device"] = value
        device = _device(named.get("device") or ("cuda" if cuda else None))
        dtype = named.get("dtype") or tensor.dtype
        if device is None or device.type not in AWAY or not isinstance(dtype, torch.dtype):
            return None
        return self._copy(kept, device, dtype)

    # what is kept

    def _find(self, data: Any, how: Any, make: Callable[[], Any]) -> Kept | None:
        """What is kept of a content, made where it is not known and may be kept."""
        import torch

        content = frozen(data)
        if content is None:
            return None
        key = content, how, torch.get_default_dtype()
        kept = self.kept.get(key)
        if kept is None and len(content) <= MOST_BYTES and self._room() and plain(data):
            kept = self._keep(key, make)
        return kept

    def _default_device(self) -> Any:
        """Where tensors are made that name no device. It is a function mode; `torch.get_default_device` asks
        `torch.tensor`."""
        import torch

        modes = torch._C._len_torch_function_stack()
        if not modes or (modes == 1 and torch._C._get_function_stack_at(0) is self._mode):
            return torch.device("cpu")
        return torch.empty(0).device

    def _room(self) -> bool:
        return len(self.kept) < MOST and self.bytes < ALL_BYTES

    def _keep(self, key: Key, make: Callable[[], Any]) -> Kept | None:
        with _aside():
            host = make()
        size = 0 if host is None else host.numel() * host.element_size()
        if host is None or size > MOST_BYTES:
            return None
        self.bytes += size
        self._note_slow()
        kept = self.kept[key] = Kept(key, host)
        return kept

    def _note_slow(self) -> None:
        """Numbers that are others at each call are no cache that fills."""
        if self.forwards < PATIENCE:
            self.slow()

    def _known(self, tensor: Any) -> Kept | None:
        """What a tensor on the host is a copy of, or a view of a copy, if it still is."""
        import torch

        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
            return None
        made, kept = self._made.get(storage(tensor), (None, None))
        if kept is None or tensor.dtype != kept.host.dtype:
            return None
        with _aside():
            if not torch.equal(made, kept.host):
                return None
        form = tensor.size(), tensor.stride(), tensor.storage_offset()
        if form == (kept.host.size(), kept.host.stride(), 0):
            return kept
        host, key = kept.host, (kept.key, form)
        return self.kept.get(key) or (self._keep(key, lambda: _part(host, form)) if self._room() else None)

    def _on_host(self, kept: Kept) -> Any:
        with _aside():
            tensor = kept.host.clone()
            if not self._made:
                self._look()
            self._made[storage(tensor)] = tensor, kept
        return _as_new(tensor)

    def _on(self, kept: Kept, device: Any, dtype: Any) -> Any:
        """What is kept on a device, None where it may not be made now."""
        on = kept.copies.get((device, dtype))
        if on is None:
            if _capturing(device):
                return None
            with _aside():
                on = kept.copies[device, dtype] = kept.host.to(device, dtype, copy=True)
            self._note_slow()
        self.used += 1
        return _as_new(on)

    def _copy(self, kept: Kept, device: Any, dtype: Any) -> Any:
        """Of it, as the script's own."""
        on = self._on(kept, device, dtype)
        return None if on is None else on.clone()


def _ordinary() -> bool:
    """Whether this forward is neither traced nor in inference mode, whose tensors can't be saved for a backward."""
    import torch

    return not torch.is_inference_mode_enabled() and torch._C._get_tracing_state() is None


def _usual() -> bool:
    """Whether the call runs on real tensors: no transform, and no dispatch mode but those that look on."""
    import torch

    if _transforms.inside():
        return False
    if not torch._C._len_torch_dispatch_stack():
        return True
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return all(type(mode).__module__ in LOOKS_ON for mode in _get_current_dispatch_mode_stack())


def _saved_tensors_hooked() -> bool:
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _part(host: Any, form: tuple[Any, Any, int]) -> Any:
    """A view, as a tensor of its own."""
    import torch

    return host.as_strided(*form).clone(memory_format=torch.contiguous_format)


def _capturing(device: Any) -> bool:
    import torch

    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _device(given: Any) -> Any:
    """With its index, where it has one: the current one may be another next time. None of what is no name of any."""
    import torch

    if not isinstance(given, (str, torch.device)):
        return None
    device = torch.device(given)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _aside() -> contextlib.AbstractContextManager[None]:
    """No mode sees what is done: it is not the forward's."""
    import torch

    if torch._C._len_torch_dispatch_stack():
        return _without_modes()
    return torch._C.DisableTorchFunction()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _as_new(tensor: Any) -> Any:
    """A tensor that was kept, and which those who look on take for one made of numbers just now, as it would be."""
    import torch

    if torch._C._len_torch_dispatch_stack():
        torch.ops.aten.lift_fresh(tensor)  # does nothing else
    return tensor
