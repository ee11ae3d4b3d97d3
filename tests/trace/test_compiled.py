"""Regions of torch.compile."""

from pathlib import Path
from typing import Any

from hotlap.trace.analyses.compiled import compiled
from hotlap.trace.read import read

from .build import call, kernel, make, op, view

GRAPH = "## Call CompiledFxGraph fabc ##"


def compiled_step() -> Any:
    return make(
        host=[
            op("Torch-Compiled Region: 0/1", 0, 100),
            op("TorchDynamo Cache Lookup", 0, 5),
            op("CompiledFunction", 10, 80),
            {**op(GRAPH, 20, 60), "cat": "annotation"},
            op("triton_poi_fused_add_0", 30, 10),
            call("cuLaunchKernel", 32, 5, 1),
            op("aten::mm", 45, 10),
            call("cudaLaunchKernel", 47, 5, 2),
            op("CompiledFunctionBackward", 200, 50, tid=2),
            call("cuLaunchKernel", 210, 5, 3, tid=2),
        ],
        device=[
            kernel("triton_poi_fused_add_0", 40, 20, 1),
            kernel("nvjet", 60, 30, 2),
            kernel("triton_red_fused_sum_1", 300, 7, 3),
        ],
    )


def test_regions_hold_what_they_launch() -> None:
    rows = {
        r.name: (r.count, r.host_ns, r.device_ns, r.kernels, r.triton_ns, r.triton_kernels)
        for r in compiled(view(compiled_step()))
    }
    assert rows == {
        "Torch-Compiled Region: 0/1": (1, 100, 50, 2, 20, 1),
        "CompiledFunction": (1, 80, 50, 2, 20, 1),
        GRAPH: (1, 60, 50, 2, 20, 1),
        "CompiledFunctionBackward": (1, 50, 7, 1, 7, 1),
        "TorchDynamo Cache Lookup": (1, 5, 0, 0, 0, 0),
    }


def test_backward_is_not_in_the_forward_region() -> None:
    trace = make(
        host=[
            op("CompiledFunction", 0, 100),
            op("autograd::engine::evaluate_function: X", 20, 10, tid=2),
            call("launch", 25, 1, 1, tid=2),
        ],
        device=[kernel("k", 30, 5, 1)],
    )
    assert compiled(view(trace))[0].kernels == 0


def test_regions_outside_the_window_do_not_count() -> None:
    assert compiled(view(compiled_step(), 150, 190)) == ()
    assert [row.name for row in compiled(view(compiled_step(), 150, 400))] == ["CompiledFunctionBackward"]


def test_eager_has_none() -> None:
    assert compiled(view(make(host=[op("aten::mm", 0, 5)]))) == ()


def test_a_real_step() -> None:
    trace = read(Path(__file__).parent / "data" / "compiled-step.json.gz")
    seen = view(trace, int(trace.host["start"][0]), 1 << 62)
    rows = {row.name[:24]: (row.count, row.kernels, row.triton_kernels) for row in compiled(seen)}
    assert rows["Torch-Compiled Region: 0"] == rows["CompiledFunction"] == (1, 326, 204)
    assert rows["CompiledFunctionBackward"] == (1, 504, 246)
    assert rows["TorchDynamo Cache Lookup"] == (1, 0, 0)
