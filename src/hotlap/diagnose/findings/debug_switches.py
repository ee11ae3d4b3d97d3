"""Switches for debugging that are still on in the loop."""

import ast
from collections.abc import Collection

from hotlap.diagnose.source import first_of, name_at
from hotlap.records.diagnosis import Finding

from ._base import Measured

ID, ANOMALY = "debug-switches", "autograd's anomaly detection is on"
CUDNN, CUDNN_OFF = "cudnn.enabled", "cuDNN is switched off"
KNOWN = {
    "detect_anomaly": (
        ANOMALY,
        "each forward op records a stack, and each gradient is checked for NaN",
        "take out `torch.autograd.set_detect_anomaly(True)` once the NaN is found",
        ("set_detect_anomaly", "detect_anomaly"),
    ),
    "fill_uninitialized_memory": (
        "deterministic algorithms fill all new memory",
        "each torch.empty is filled, in every op that allocates",
        "`torch.utils.deterministic.fill_uninitialized_memory = False`, or leave out "
        "`use_deterministic_algorithms(True)`",
        ("use_deterministic_algorithms",),
    ),
    "CUDA_LAUNCH_BLOCKING": (
        "CUDA_LAUNCH_BLOCKING=1 is set",
        "the host waits for each kernel, so nothing is launched ahead of the device",
        "unset CUDA_LAUNCH_BLOCKING",
        (),
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set: torch keeps no device memory",
        "each tensor costs a cudaMalloc and a cudaFree, which waits for the device",
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING, also where the script sets it in os.environ",
        (),
    ),
    "profiler": (
        "a profiler records every step",
        "each op of the host and the device is recorded, and memory grows with each step",
        "leave its `with` block after some steps, or use `schedule=torch.profiler.schedule(wait=5, warmup=2, "
        "active=3)` and `profiler.step()` in each step",
        ("profile", "record_shapes"),
    ),
    "set_sync_debug_mode": (
        "CUDA's sync debug mode is on",
        "each call that waits for the device warns, with a stack",
        "take out `torch.cuda.set_sync_debug_mode`",
        ("set_sync_debug_mode",),
    ),
    CUDNN: (
        CUDNN_OFF,
        "convolutions run as im2col and a matrix product for each sample",
        "take out `torch.backends.cudnn.enabled = False`; for reproducible results "
        "`torch.backends.cudnn.deterministic = True`",
        (),
    ),
}
UNTOLD = "; its cost is in the phases and was not measured"
OF_CUDA = frozenset({"CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING", "set_sync_debug_mode", CUDNN})
"""Those that change nothing where no step uses a device."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold what they cost, which takes a run without them to tell, or a trace."""
    facts = measured.facts
    passed_by = OF_CUDA if facts is None or facts.device != "cuda" else frozenset[str]()
    if facts is not None and not any(root.conv for root in facts.roots):
        passed_by |= {CUDNN}
    on = [name for name in KNOWN if facts is not None and name in facts.switches and name not in passed_by]
    if not on:
        return None
    title, why, instead, calls = KNOWN[on[0]]
    more = f"; and {', '.join(KNOWN[name][0] for name in on[1:])}" if on[1:] else ""
    return Finding(
        id=ID,
        bound="unknown",
        share=0.0,
        title=title,
        where=first_of(facts, lambda node: _enables(node, calls, on[0]))
        or first_of(facts, lambda node: _is(node, on[0]) or _turns_off(node, on[0])),
        evidence=f"it was on in a step of the loop{more}{UNTOLD}",
        why=why,
        instead=instead,
        named=True,
    )


def _enables(node: ast.AST, calls: Collection[str], name: str) -> bool:
    """Whether it is a call of one of these, or one that is given an argument of that name, and is not told False."""
    if not isinstance(node, ast.Call):
        return False
    if name_at(node.func) in calls:
        told = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "mode")]
    else:
        told = [one.value for one in node.keywords if one.arg == name]
        if not told:
            return False
    return not any(isinstance(one, ast.Constant) and one.value in (False, None) for one in told)


def _is(node: ast.AST, text: str) -> bool:
    """Whether it is that text, as where a variable of the environment is set."""
    return isinstance(node, ast.Constant) and node.value == text


def _turns_off(node: ast.AST, name: str) -> bool:
    """Whether it sets what is called so to False: `torch.backends.cudnn.enabled = False`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return False
    return node.value.value is False and any(ast.unparse(one).endswith(name) for one in node.targets)
