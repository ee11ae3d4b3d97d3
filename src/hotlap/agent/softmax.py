"""Whether the code of a model calls softmax, read from its code objects: nothing is run and nothing hooked."""

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

NAMES: Final = frozenset({"softmax", "Softmax"})
OWN_ATTENTION: Final = "MultiheadAttention"
WITHOUT_WEIGHTS: Final = ("TransformerEncoderLayer", "TransformerDecoderLayer")
"""torch's layers that ask their MultiheadAttention for no weights, and so run the fused kernel already."""


def calls_softmax(modules: Iterable[Any]) -> bool:
    """Whether a module is a Softmax, a MultiheadAttention used directly, or of a class in whose file softmax is
    called."""
    kinds = {type(module) for module in modules}
    names = {kind.__name__ for kind in kinds if kind.__module__.startswith("torch.nn.")}
    if "Softmax" in names or (OWN_ATTENTION in names and not names & set(WITHOUT_WEIGHTS)):
        return True
    files = {kind.__module__ for kind in kinds} - {kind.__module__ for kind in kinds if kind.__module__[:6] == "torch."}
    return any(_mentioned(code) for name in files for code in _code_of(sys.modules.get(name)))


def _code_of(module: Any) -> Iterator[CodeType]:
    for value in list(vars(module).values()) if module is not None else []:
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                yield function.__code__


def _mentioned(code: CodeType) -> bool:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return not NAMES.isdisjoint(code.co_names) or any(_mentioned(const) for const in inner)
