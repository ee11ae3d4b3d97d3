"""Not a lever: what worker processes would be made of, in a few bytes, to tell whether the script has changed it since.

A worker has the dataset as it was when it was started. A script that draws its negative samples anew before each epoch,
or loads its next buffer, does so in the training process, and workers that persist never see it.

It is the digest of a pickle that nobody reads: what is sent to a worker where processes are spawned. Functions and
classes of the script's count as which they are, with plain values that they hold: attributes of a class, a function's
closure, defaults, and global variables that it names, or attributes of those (`args.noise`, `config.LEVEL`), with
other functions of the script's among them. Large arrays and tensors count as where they lie, their version
and some of their values, so that a few values that are changed in place in a large array are not seen.
"""

import contextlib
import dis
import functools
import hashlib
import inspect
import io
import pickle
import sys
import time
import types
import zlib
from collections.abc import Iterator
from typing import Any, Final

from .._internals import internals

MOST_BYTES: Final = 64 << 20
MOST_S: Final = 0.3
"""More takes longer than it would to start workers anew."""
LARGE: Final = 16 << 20
"""Bytes of an array from which on only some of its values are looked at."""
LOOKED_AT: Final = 4096
METHODS: Final = ("__getitem__", "__getitems__", "__call__", "__iter__")
"""Of those whose names begin so, what samples are made by."""
_UNREADABLE: Final = (
    pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError, LookupError, OSError, ImportError,
    EOFError, AssertionError, ArithmeticError, BufferError, MemoryError,
)  # fmt: skip
"""What pickling objects of a script's own raises; `NotImplementedError` and `RecursionError` are among them."""


def state_of(*things: Any) -> bytes | None:
    """A digest that is the same as long as none of them changes; None where that can't be told in about `MOST_S`.
    Raises what a script's own objects raise that is of their own kind."""
    digest = _Digest()
    try:
        _Reader(digest, protocol=5, buffer_callback=digest.buffer).dump(things)
    except (*_UNREADABLE, _TooMuch):
        return None
    return digest.hash.digest()


class _TooMuch(Exception):
    """There is no telling within bounds."""


class _Digest(io.RawIOBase):
    """A file that keeps nothing of what is written."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._left, self._until = MOST_BYTES, time.monotonic() + MOST_S

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._left -= view.nbytes
        if self._left < 0 or time.monotonic() > self._until:
            raise _TooMuch
        self.hash.update(view)
        return view.nbytes

    def buffer(self, buffer: pickle.PickleBuffer) -> None:
        """An array's values."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            self.write(_sum(raw))
            return
        from ctypes import addressof, c_char

        at = addressof(c_char.from_buffer(raw)) if not raw.readonly else 0
        self.write(repr((at, raw.nbytes)).encode())
        self.write(bytes(raw[:: max(1, raw.nbytes // LOOKED_AT) | 1]))


def _sum(values: Any) -> bytes:
    """A checksum, at several bytes a nanosecond: a short epoch is not to take longer for it."""
    return zlib.crc32(values).to_bytes(4, "big")


class _Reader(pickle.Pickler):
    """Leaves nothing out that is plain data, and takes nothing that can't be compared."""

    def reducer_override(self, thing: Any) -> Any:
        import torch

        if thing is _is:
            return NotImplemented
        if isinstance(thing, torch.Tensor):
            return _is, (_tensor(thing),)
        if isinstance(thing, types.FunctionType):
            return _is, (f"{id(thing)}",), None, _held_by(thing)
        if isinstance(thing, type):
            return _is, (f"{id(thing)}",), None, _attributes_of(thing)
        kinds = {kind.__name__ for kind in type(thing).__mro__}
        # Workers see the file of a memmap as well.
        if isinstance(thing, (types.ModuleType, types.BuiltinFunctionType)) or "memmap" in kinds:
            return _is, (f"{id(thing)}",)
        if "ndarray" in kinds and thing.nbytes >= LARGE and not thing.flags.forc:
            raise _TooMuch  # it would be copied
        return NotImplemented


def _is(text: str) -> None:
    """What stands in place of things: nothing is ever read back."""


def _held_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function's result may hang on beside its arguments."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    if not _installed(function.__module__):
        for name, *attributes in _globals(function.__code__):
            value = function.__globals__.get(name)
            for attribute in attributes:
                value = inspect.getattr_static(value, attribute, None)
            if _is_data(value) or (isinstance(value, types.FunctionType) and not _installed(value.__module__)):
                yield value


@functools.lru_cache(maxsize=1024)
def _globals(code: types.CodeType) -> list[tuple[str, ...]]:
    """Names of global variables, each also with those of the attributes that are read of it. Functions within, such as
    comprehensions, have theirs."""
    found: set[tuple[str, ...]] = set()
    path: tuple[str, ...] = ()
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            path = (one.argval,)
        elif one.opname in {"LOAD_ATTR", "LOAD_METHOD"} and path:
            path = (*path, one.argval)
        else:
            path = ()
        found |= {path} if path else set()
    for constant in code.co_consts:
        found |= set(_globals(constant)) if isinstance(constant, types.CodeType) else set()
    return sorted(found)


def _attributes_of(kind: type) -> Iterator[Any]:
    """Those of a class and its bases, with what its methods hold, where they are the script's."""
    for base in kind.__mro__:
        if not _installed(base.__module__):
            own = [value for name, value in vars(base).items() if not name.startswith("__") or name in METHODS]
            yield from (one for one in map(_function_of, own) if _is_data(one) or isinstance(one, types.FunctionType))


def _function_of(value: Any) -> Any:
    """Of what a class holds for its objects."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _is_data(value: Any) -> bool:
    kinds = (int, float, str, bytes, list, tuple, dict, set, type(None))
    return isinstance(value, kinds) or type(value).__name__ in {"ndarray", "Tensor"}


def _installed(module: str | None) -> bool:
    """Whether a module is of Python's or an installed package, whose classes don't change as a script runs."""
    from hotlap.agent.lines import Places

    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return module != "__main__" if file is None else not Places().users(file)


def _tensor(tensor: Any) -> str:
    """By its values; of a large one by some of those of the memory that it lies in, where that is, and its version."""
    import torch

    form = type(tensor).__qualname__, str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
        return repr((*form, id(tensor), internals().version_of(tensor)))
    plain = tensor.detach().as_subclass(torch.Tensor)
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(plain.untyped_storage())
    lies = plain.storage_offset(), plain.stride(), plain.is_conj(), plain.is_neg()
    if whole.numel() < LARGE:
        return repr((*form, lies, _sum(whole.numpy())))
    some = whole[:: max(1, whole.numel() // LOOKED_AT) | 1]
    return repr((*form, lies, plain.data_ptr(), internals().version_of(tensor), bytes(some.numpy())))
