"""MFU: the model's FLOPs, whose they are, and what is not known."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.records.peaks import Peaks
from hotlap.records.utilisation import Utilisation
from hotlap.report.rates import flops as flops_text
from hotlap.report.rates import mfu_parts
from hotlap.trace.analyses.roofline import needs
from hotlap.trace.analyses.utilisation import model_flops, over_ranks, utilisation
from hotlap.trace.answer import view_of
from hotlap.trace.files import trace_files
from hotlap.trace.peaks import peaks_of
from hotlap.trace.view import View

from .build import call, kernel, make, note, op, view
from .test_roofline import H100, SIMT, inputs, products, shapes

REAL = Path(__file__).parents[3] / "shared" / "traces"
EVALUATE = "autograd::engine::evaluate_function: "
ONE = 2 * 8**3
"""FLOPs of a product of 8 by 8."""
MS = 1_000_000


def of(seen: View, peaks: Peaks | None = H100, unprofiled_ms: float | None = None) -> Utilisation:
    return utilisation(seen, peaks, "NVIDIA X", unprofiled_ms)


def step(host: list[dict[str, Any]], name: str = "nvjet", kind: str = "c10::BFloat16", steps: int = 1) -> View:
    """A ms a step; each product of `host` launches a kernel."""
    calls, device = [], []
    for row in [row for row in host if row["name"].startswith("aten::") and row.get("shapes", -1) >= 0]:
        at = len(device) + 1
        calls.append(call("l", row["start"] + 1, 1, at))
        device.append(kernel(name, row["start"] + 100, 50, at))
    edges = tuple((at * MS, (at + 1) * MS) for at in range(steps))
    trace = make(host=[*host, *calls], device=device, shapes=[shapes([[8, 8], [8, 8]], [kind, kind])])
    return view(trace, 0, steps * MS, edges)


def mm(at: int, **more: Any) -> dict[str, Any]:
    return op("aten::mm", at, 10, shapes=0, **more)


# the formula


def test_flops_over_time_and_peak() -> None:
    found = of(step([mm(0), mm(1000)]))
    assert (found.flops, found.step_ms, found.profiled, found.why) == (2 * ONE, 1.0, True, "")
    assert found.mfu == pytest.approx(2 * ONE / 1e-3 / 1000e12)
    assert [(one.dtype, one.tflops) for one in found.products] == [("bf16", 1000.0)]
    assert of(step([mm(0), mm(MS + 5)], steps=2)).flops == ONE, "a step"


def test_the_step_without_the_profiler_is_the_one_that_counts() -> None:
    slow, quick = of(step([mm(0)])), of(step([mm(0)]), unprofiled_ms=0.5)
    assert quick.mfu == pytest.approx(2 * (slow.mfu or 0)) and not quick.profiled


@pytest.mark.parametrize(
    ("kernel_name", "peak"), [(SIMT, 50.0), ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", 500.0), ("says nothing", 500.0)]
)
def test_fp32_has_the_peak_of_the_unit_that_ran_it(kernel_name: str, peak: float) -> None:
    (only,) = of(products(kernel_name, "float")).products
    assert only.tflops == peak


def test_each_dtype_is_held_against_its_own_peak() -> None:
    kinds = [shapes([[8, 8], [8, 8]], [kind, kind]) for kind in ("c10::BFloat16", "float")]
    host = [op("aten::mm", 0, 10, shapes=0), op("aten::mm", 20, 10, shapes=1), call("l", 1, 1, 1), call("l", 21, 1, 2)]
    seen = view(make(host, [kernel("nvjet", 100, 9, 1), kernel(SIMT, 200, 9, 2)], kinds), 0, MS, ((0, MS),))
    assert of(seen).mfu == pytest.approx((ONE / 1000e12 + ONE / 50e12) / 1e-3)


def test_attention_counts_two_products_forward_and_four_backward_over_all_pairs() -> None:
    q = [2, 3, 16, 8]
    for causal in ("True", "False"):
        forward = inputs("aten::_scaled_dot_product_flash_attention", [q, q, q], values=["", "", "", "0.0", causal])
        dims = [q, q, q, q, q]
        values = [""] * 11 + [causal]
        backward = inputs("aten::_scaled_dot_product_flash_attention_backward", dims, values=values)
        assert model_flops(forward) == 2 * 2 * 2 * 3 * 16 * 16 * 8
        assert model_flops(backward) == 2 * (model_flops(forward) or 0)
    assert (needs(forward) or (0,))[0] == model_flops(forward)
    assert (needs(backward) or (0,))[0] == 2.5 * (model_flops(forward) or 0)
    assert model_flops(inputs("aten::_scaled_dot_product_flash_attention", [q])) is None


# whose they are


def test_what_a_checkpoint_computes_again_is_told_apart() -> None:
    node = [op(f"{EVALUATE}GeluBackward0", 1000, 500), op("GeluBackward0", 1001, 400)]
    again = [op("aten::linear", 1010, 100, sequence=7, fwd_tid=0), mm(1020, sequence=8, fwd_tid=0)]
    own = [op(f"{EVALUATE}MmBackward0", 2000, 500), op("MmBackward0", 2001, 400), mm(2010), mm(2100)]
    found = of(step([mm(0, sequence=1, fwd_tid=0), *node, *again, *own]))
    assert (found.flops, found.recomputed) == (3 * ONE, ONE)
    assert "recomputed" in " ".join(mfu_parts(found))


def test_it_is_told_apart_where_a_product_itself_sets_it_off() -> None:
    """A checkpoint that calls `torch.mm`, unpacked by the backward of another product."""
    node = [op(f"{EVALUATE}MmBackward0", 1000, 900), op("MmBackward0", 1001, 800)]
    found = of(step([*node, mm(1010, sequence=8, fwd_tid=0), mm(1100), mm(1200)]))
    assert (found.flops, found.recomputed) == (2 * ONE, ONE)


def test_a_backward_that_is_differentiated_again_computes_nothing_again() -> None:
    """`create_graph`: its products have sequence numbers too."""
    node = [op(f"{EVALUATE}AddmmBackward0", 1000, 900), op("AddmmBackward0", 1001, 800)]
    found = of(step([*node, mm(1010, sequence=8, fwd_tid=0), mm(1100, sequence=9, fwd_tid=0)]))
    assert (found.flops, found.recomputed) == (2 * ONE, 0)


def test_products_of_the_optimizer_are_told_apart() -> None:
    found = of(step([mm(0), note("Optimizer.step#Muon.step", 1000, 500), mm(1010), mm(1100)]))
    assert (found.flops, found.optimizer) == (ONE, 2 * ONE)


# what is not known


def test_products_whose_sizes_are_not_told_leave_it_unknown() -> None:
    def seen(unknown_ns: int, name: str = "nvjet_sm90_tst") -> Utilisation:
        trace = step([mm(0)]).trace
        late = kernel(name, 5000, unknown_ns)
        rows = [
            {key: value for key, value in row.items() if key not in {"launch", "op"}} for row in trace.device.to_dicts()
        ]
        calls = [op("aten::mm", 0, 10, shapes=0), call("l", 1, 1, 1)]
        return of(view(make(calls, [*rows, late], trace.shapes.to_dicts()), 0, MS, ((0, MS),)))

    assert seen(2).mfu is None and "matrix products of unknown size" in seen(2).why
    assert "nvjet_sm90_tst" in seen(2).why and seen(2).flops == ONE
    assert seen(500, "vectorized_elementwise_kernel").mfu is not None
    assert seen(500, "triton_tem_fused_mm_3").mfu is None and seen(0).mfu is not None


@pytest.mark.parametrize(
    ("seen", "peaks", "why"),
    [
        (step([mm(0)]), None, "the peak of NVIDIA X is unknown; `hotlap calibrate`"),
        (step([mm(0)]), peaks_of("Tesla T4"), "no peak of NVIDIA X is known for bf16"),
        (view(make([mm(0)])), H100, "no GPU worked"),
        (view(make()), H100, "no GPU worked"),
        (step([op("aten::add", 0, 10, shapes=0)], "add"), H100, "no matrix product"),
        (view(make([op("aten::mm", 0, 9), call("l", 1, 1, 1)], [kernel("add", 5, 9, 1)])), H100, "no matrix product"),
    ],
)
def test_why_it_is_unknown_is_said(seen: View, peaks: Peaks | None, why: str) -> None:
    found = of(seen, peaks)
    assert found.mfu is None and found.why.startswith(why)
    assert next(mfu_parts(found)).startswith(f"MFU unknown: {why}")


# several ranks, and the screen


def test_over_ranks_it_is_their_mean_where_each_is_known() -> None:
    known, other, unknown = Utilisation(mfu=0.25, flops=1e12), Utilisation(mfu=0.75), Utilisation(why="torn")
    both = over_ranks([known, other])
    assert both is not None and (both.mfu, both.ranks, both.flops) == (0.5, 2, 1e12)
    assert over_ranks([known, unknown]) is unknown and over_ranks([]) is None


def test_the_screen_says_what_it_is_made_of() -> None:
    found = of(step([mm(0)]))
    products = (msgspec.structs.replace(found.products[0], flops=7e12),)
    told = {"mfu": 0.234, "flops": 7e12, "step_ms": 30.0, "recomputed": 1e9, "optimizer": 2e6, "products": products}
    found = msgspec.structs.replace(found, **told)
    assert list(mfu_parts(found)) == [
        "MFU 23.4%",
        "7.00 TFLOP a step in 30.0 ms under the profiler",
        "peak 1,000 TFLOP/s bf16 (data sheet of H100)",
        "1.00 GFLOP more a step is recomputed (checkpointing)",
        "2.00 MFLOP more a step in the optimizer",
    ]
    assert flops_text(3.5e15) == "3.50 PFLOP"


def test_a_calibrated_peak_is_named() -> None:
    measured = msgspec.structs.replace(H100, source="measured with torch 2.13")
    assert of(step([mm(0)]), measured).peaks == "hotlap calibrate, measured with torch 2.13"


# real traces: 12 layers, d=768, 8 rows of 1024 tokens, 50304 words

TOKENS, WEIGHTS = 8 * 1024, 12 * 12 * 768**2 + 768 * 50304
PALM = (6 * WEIGHTS + 12 * 12 * 768 * 1024) * TOKENS


@pytest.mark.parametrize(
    ("name", "dtype", "mfu"),
    [
        ("gpt2-124m-fp32-eager-h100.json.gz", "fp32", 0.502),
        ("gpt2-124m-bf16-compiled-h100.json.gz", "bf16", 0.234),
        ("gpt2-124m-ddp-4xh200.tar", "bf16", 0.110),
    ],
)
def test_gpt2_has_the_flops_of_the_formula(name: str, dtype: str, mfu: float) -> None:
    if not (REAL / name).is_file():
        pytest.skip(f"no {REAL / name} here")
    seen = view_of(trace_files(REAL / name)[0].load(lambda at: None))
    found = of(seen, peaks_of("NVIDIA H100 80GB HBM3"))
    assert found.flops == PALM and [one.dtype for one in found.products] == [dtype]
    assert found.mfu == pytest.approx(mfu, abs=0.001)


def test_a_graph_tells_no_sizes() -> None:
    if not (REAL / "gpt2-124m-bf16-cudagraphs-h100.json.gz").is_file():
        pytest.skip("no real traces here")
    (file,) = trace_files(REAL / "gpt2-124m-bf16-cudagraphs-h100.json.gz")
    assert "nvjet" in of(view_of(file.load(lambda at: None))).why
