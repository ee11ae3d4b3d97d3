"""When which part of a model runs, so that what is allocated has a module as well as a line."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

MOST_CALLS: Final = 200_000
"""Beginnings and ends that are kept."""
ENDS: Final = -1


class ModuleCalls:
    """The columns of `records.memory.ModuleCalls`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.times: list[int] = []
        self.modules: list[int] = []

    @contextlib.contextmanager
    def watching(self, models: Iterable[tuple[str, Any]], tell: Callable[..., None]) -> Iterator[None]:
        """Note the calls that this thread makes of modules of these models, each with what their names begin with.
        tell(act, *of) calls `act(*of)` under the guard.

        By torch's hooks for all modules, for which torch.compile would look at its graphs anew: it must not be in use.
        """
        known: dict[int, int] = {}
        for model, root in models:
            for name, module in root.named_modules():
                if id(module) not in known:
                    known[id(module)] = len(self.names)
                    self.names.append(f"{model}{name}".strip(".") or type(module).__name__)
        thread = threading.get_ident()

        def note(module: Any, ends: bool) -> None:
            number = known.get(id(module))
            if number is not None and threading.get_ident() == thread and len(self.times) < MOST_CALLS:
                self.times.append(time.time_ns())
                self.modules.append(ENDS if ends else number)

        begins = register_module_forward_pre_hook(lambda module, _: tell(note, module, False))
        ends = register_module_forward_hook(lambda module, *_: tell(note, module, True), always_call=True)
        try:
            yield
        finally:
            begins.remove()
            ends.remove()

    def document(self) -> dict[str, Any]:
        """As the file has it."""
        return {"names": self.names, "times": self.times, "modules": self.modules}
