"""Not a lever: what a compiled forward saves stays whole for a second backward, where the script's code asks for one.

A compiled backward writes over what its forward saved (`donated_buffer` of torch's `_functorch/config.py`), and raises
where it is called with `retain_graph=True`, but for graphs that were so called each time since they were compiled.
Whether the script does that is told by the text of its files before anything is compiled: a call that comes once, when
the training is over, counts too. Without it a backward takes new memory for what it would have written over.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

ASKED: Final = re.compile(rb"\bretain_graph\s*=\s*(?!False\b|None\b)\w")
MOST_FILES: Final = 500
LARGEST: Final = 1 << 20
"""Bytes of a file."""


def keep_what_is_saved() -> None:
    """From now on, in what is compiled in this process, where the script asks for it."""
    import torch._functorch.config

    config = torch._functorch.config
    if getattr(config, "donated_buffer", False) and any(map(_asks, _files())):
        config.donated_buffer = False


def _files() -> list[str]:
    """Of the script and what it imported, those that are the user's."""
    from hotlap.agent.imported import ATTRIBUTES
    from hotlap.agent.lines import Places

    users = Places().users
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    files = {ATTRIBUTES(module).get("__file__") for module in modules}
    every = sorted({str(Path(file).absolute()) for file in files if type(file) is str and file.endswith(".py")})
    return [file for file in every if users(file)][:MOST_FILES]


def _asks(file: str) -> bool:
    """Whether a file asks for a graph to be kept; not where it can't be read."""
    try:
        with Path(file).open("rb") as opened:
            return ASKED.search(opened.read(LARGEST)) is not None
    except OSError:
        return False
