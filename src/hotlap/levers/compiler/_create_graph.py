"""Not a lever: what the text of the script's files asks of gradients, which compiled code has to know beforehand.

A compiled backward can't be differentiated again (`_worth_compiling`). And it writes over what its forward saved
(`donated_buffer` of torch's `_functorch/config.py`), and raises where it is called with `retain_graph=True`, which is
the default with `create_graph=True`, but for graphs that were so called each time since they were compiled. What comes
once, when the training is over, counts too; so the files are read, before anything is compiled. Where a graph is kept a
backward takes new memory for what it would have written over.

Gradients of inputs that are differentiated again (penalties) are told at the forward, whose input needs one. Those of
parameters (TRPO, MAML's second order, AdaHessian) are told nowhere before their backward, which ends the run, and may
come late. So they are told by how the call is written: `backward(create_graph=True)`, or a `grad` of something with a
name of weights. Wrappers of scalers hand an argument on to `backward` that is hardly ever true.
"""

import ast
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

from .._internals import internals

KEPT: Final = re.compile(rb"\b(?:retain|create)_graph\s*=\s*(?!False\b|None\b|=)\S")
AGAIN: Final = re.compile(rb"\bcreate_graph\s*=\s*(?!False\b|None\b|=)\S")
OF_WEIGHTS: Final = re.compile(r"(?i)param|weight|theta|\bvars\b|\.values\(\)")
OF_PARAMETERS: Final = (
    "the script differentiates parameter gradients again ({}:{}), which a compiled backward does not support"
)
MOST_FILES: Final = 500
LARGEST: Final = 1 << 20
"""Bytes of a file."""


def keep_what_is_saved() -> None:
    """From now on, in what is compiled in this process, where the script asks for it."""
    config = internals().functorch_config()
    if getattr(config, "donated_buffer", False) and any(_holds(file, KEPT) for file in _files()):
        config.donated_buffer = False


def differentiates_again() -> bool:
    """Whether the script asks for gradients that it can differentiate again."""
    return _differentiates_again(len(sys.modules))


def differentiates_parameters() -> str:
    """Why nothing can be compiled: gradients of parameters are asked for that it can differentiate again; else ""."""
    for file in _files():
        if _holds(file, AGAIN) and (line := _line_of_parameters(file)):
            return OF_PARAMETERS.format(Path(file).name, line)
    return ""


def _line_of_parameters(file: str) -> int:
    """Where a file asks for them, 0 nowhere."""
    try:
        tree = ast.parse(Path(file).read_bytes()[:LARGEST])
    except (OSError, SyntaxError, ValueError):  # what was imported has been changed since, or is longer
        return 0
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return next((node.lineno for node in calls if _again_of_parameters(node)), 0)


def _again_of_parameters(call: ast.Call) -> bool:
    """Whether a backward, or a call of `grad`, makes gradients of parameters that can be differentiated again."""
    create_graph = next((word.value for word in call.keywords if word.arg == "create_graph"), None)
    if create_graph is None or (isinstance(create_graph, ast.Constant) and not create_graph.value):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    inputs = [word.value for word in call.keywords if word.arg == "inputs"] or call.args[1:2]
    if name == "backward":
        return isinstance(create_graph, ast.Constant) and not inputs
    return any(OF_WEIGHTS.search(ast.unparse(one)) is not None for one in inputs)


@lru_cache(maxsize=64)
def _differentiates_again(modules: int) -> bool:
    """As long as no module is imported, the answer is the same."""
    return any(_holds(file, AGAIN) for file in _files())


def _files() -> list[str]:
    """Of the script and what it imported, those that are the user's."""
    from hotlap.agent.facts.process import ATTRIBUTES
    from hotlap.agent.lines import Places

    users = Places().users
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    files = {ATTRIBUTES(module).get("__file__") for module in modules}
    every = sorted({str(Path(file).absolute()) for file in files if type(file) is str and file.endswith(".py")})
    return [file for file in every if users(file)][:MOST_FILES]


def _holds(file: str, what: re.Pattern[bytes]) -> bool:
    """Not where it can't be read."""
    try:
        with Path(file).open("rb") as opened:
            return what.search(opened.read(LARGEST)) is not None
    except OSError:
        return False
