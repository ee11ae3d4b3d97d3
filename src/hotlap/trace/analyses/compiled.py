"""Regions of torch.compile on the host, and the work launched in them.

Regions are host events that torch writes around compiled code: `Torch-Compiled Region: F/R` (F: the frame, R: how often
it was recompiled before), `TorchDynamo Cache Lookup` (guards are checked), `Pregraph bytecode` and `AOTDispatcher ...`
(what runs around the graph), `CompiledFunction` and `CompiledFunctionBackward` (the graphs, as autograd sees them) and
`## Call CompiledFxGraph HASH ##` (Inductor's code). They nest: `CompiledFunction` holds the call of its graph, so times
of different names do not add up. A region that begins in the window counts with all work that its own thread launches
in it; of recursive ones of one name the outer. Work is summed, not its union. Triton kernels are those whose name
begins with `triton_`; the rest are library calls, ATen's own kernels, copies and memsets. A CUDA graph's work hangs on
one launch, so it is in whichever region holds that.
"""

import re
from typing import Final

import numpy as np

from hotlap.records.trace import CompiledRegion

from ..links import enclosing
from ..view import View
from .annotations import launched
from .grouping import Ints, coded, host_of, sums

REGION: Final = re.compile(
    r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher |CompiledFunction|"
    r"## Call CompiledFxGraph )"
)
TRITON: Final = "triton_"


def compiled(view: View) -> tuple[CompiledRegion, ...]:
    """By name, most device time first, then most host time."""
    host = view.trace.host
    starts = view.host("start")
    rows = np.nonzero(host_of(view).named(REGION.match) & view.in_window(starts))[0].astype(np.int64)
    if not len(rows):
        return ()
    rows = _outermost(view, rows)
    texts, text = coded(host["name"].gather(rows))
    work = launched(view, rows, backward=False)
    triton = view.trace.device["name"].str.starts_with(TRITON).to_numpy()[work.row]
    key, took = text[work.range], work.end - work.start
    columns = {
        "count": np.bincount(text, minlength=len(texts)),
        "host_ns": sums(text, view.host("dur")[rows], len(texts)),
        "device_ns": sums(key, took, len(texts)),
        "kernels": np.bincount(key, minlength=len(texts)),
        "triton_ns": sums(key[triton], took[triton], len(texts)),
        "triton_kernels": np.bincount(key[triton], minlength=len(texts)),
    }
    found = [
        CompiledRegion(name=name, **{field: int(column[at]) for field, column in columns.items()})
        for at, name in enumerate(texts)
    ]
    return tuple(sorted(found, key=lambda row: (-row.device_ns, -row.host_ns, row.name)))


def _outermost(view: View, rows: Ints) -> Ints:
    """Without rows inside another of the same name."""
    names = view.trace.host["name"].gather(rows)
    parent = host_of(view).parent
    inner = np.zeros(len(rows), np.bool_)
    for name in names.unique().to_list():
        mine = (names == name).to_numpy()
        same = np.zeros(len(parent), np.bool_)
        same[rows[mine]] = True
        inner[mine] = enclosing(parent[rows[mine]], parent, same) >= 0
    return rows[~inner]
