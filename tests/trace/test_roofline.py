"""FLOPs, bytes and peaks of ops."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.records.peaks import Peaks
from hotlap.trace.analyses.roofline import MATRIX, Call, call_of, claimed, needs, roofline, tensor_cores, why_not
from hotlap.trace.peaks import DEVICES, peaks_of
from hotlap.trace.read import read
from hotlap.trace.view import View

from .build import call, kernel, make, op, view

H100 = Peaks(name="H100", bf16=1000, fp16=1000, tf32=500, fp32=50, fp64=30, memory_gbs=2000)
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)"


def inputs(name: str, dims: list[Any], types: list[str] | None = None, strides: Any = None, values: Any = None) -> Call:
    return Call(
        op=name,
        dims=dims,
        types=types or ["float" if d else "Scalar" for d in dims],
        strides=strides or [],
        inputs=values or [],
    )


def flops(name: str, dims: list[Any], values: Any = None) -> int:
    found = needs(inputs(name, dims, values=values))
    assert found is not None
    return found[0]


def moved(name: str, dims: list[Any], types: list[str] | None = None, strides: Any = None) -> int | None:
    found = needs(inputs(name, dims, types, strides))
    return None if found is None else found[1]


# FLOPs, against torch

SIZE = st.integers(1, 9)


@settings(max_examples=30)
@given(SIZE, SIZE, SIZE, SIZE)
def test_products_against_torch(b: int, m: int, k: int, n: int) -> None:
    torch = pytest.importorskip("torch")
    registry, aten = pytest.importorskip("torch.utils.flop_counter").flop_registry, torch.ops.aten
    assert flops("aten::mm", [[m, k], [k, n]]) == registry[aten.mm]((m, k), (k, n))
    assert flops("aten::addmm", [[n], [m, k], [k, n], [], []]) == registry[aten.addmm]((n,), (m, k), (k, n))
    assert flops("aten::bmm", [[b, m, k], [b, k, n]]) == registry[aten.bmm]((b, m, k), (b, k, n))
    assert flops("aten::baddbmm", [[n], [b, m, k], [b, k, n]]) == registry[aten.baddbmm]((n,), (b, m, k), (b, k, n))
    assert flops("aten::linear", [[b, m, k], [n, k], [n]]) == registry[aten.mm]((b * m, k), (k, n))


@settings(max_examples=40)
@given(
    st.tuples(SIZE, SIZE, SIZE, st.lists(st.integers(5, 9), min_size=1, max_size=3)),
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 1), st.integers(1, 2)),
    st.booleans(),
    st.tuples(st.booleans(), st.booleans()),
)
def test_convolutions_against_torch(sizes: Any, how: Any, transposed: bool, mask: tuple[bool, bool]) -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    batch, c_in, c_out, space = sizes
    kernel_size, stride, padding, dilation = how
    n = len(space)
    x = torch.empty([batch, c_in, *space], device="meta")
    w = torch.empty(
        [c_in, c_out, *[kernel_size] * n] if transposed else [c_out, c_in, *[kernel_size] * n], device="meta"
    )
    rest = ([stride] * n, [padding] * n, [dilation] * n, transposed, [0] * n, 1)
    with counter(display=False) as forward:
        out = torch.ops.aten.convolution(x, w, None, *rest)
    with counter(display=False) as backward:
        torch.ops.aten.convolution_backward(out, x, w, None, *rest, [*mask, False])
    values = ["", "", "", *map(str, rest)]
    dims = [list(x.shape), list(w.shape), [], *[[]] * 6]
    found = needs(inputs("aten::convolution", dims, values=values))
    assert found is not None
    assert found[0] == forward.get_total_flops()
    assert found[1] == 4 * (x.numel() + w.numel() + out.numel())
    dims, values = (
        [list(out.shape), list(x.shape), list(w.shape), *[[]] * 8],
        ["", *values, f"[{mask[0]}, {mask[1]}, False]"],
    )
    back = needs(inputs("aten::convolution_backward", dims, values=values))
    assert back is not None
    assert back[0] == backward.get_total_flops()


def test_a_grouped_convolution_meets_its_group_only() -> None:
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4"]
    dims = [[2, 8, 5, 5], [16, 2, 3, 3], [], [], [], [], [], [], []]
    assert flops("aten::convolution", dims, values) == 2 * (2 * 16 * 5 * 5) * (2 * 3 * 3)
    back = [[2, 16, 5, 5], [2, 8, 5, 5], [16, 2, 3, 3]] + [[]] * 8
    both = ["", *values, "[True, True, False]"]
    assert flops("aten::convolution_backward", back, both) == 2 * flops("aten::convolution", dims, values)


def test_one_number_stands_for_all_sides() -> None:
    values = ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"]
    assert flops("aten::convolution", [[1, 1, 8, 8], [1, 1, 3, 3]], values) == 2 * 4 * 4 * 9


@settings(max_examples=30)
@given(SIZE, SIZE, SIZE, SIZE, SIZE, SIZE)
def test_attention_against_torch(b: int, h: int, q: int, k: int, d: int, dv: int) -> None:
    torch = pytest.importorskip("torch")
    registry, aten = pytest.importorskip("torch.utils.flop_counter").flop_registry, torch.ops.aten
    shapes = [[b, h, q, d], [b, h, k, d], [b, h, k, dv]]
    out = [b, h, q, dv]
    for kind in ("flash", "efficient", "cudnn"):
        name = f"_scaled_dot_product_{kind}_attention"
        assert flops(f"aten::{name}", shapes) == registry[getattr(aten, name)](*shapes)
        backward = registry[getattr(aten, name + "_backward")](out, *shapes)
        assert flops(f"aten::{name}_backward", [out, *shapes, out]) == backward


SCHEMAS = {  # op: which argument says whether it is causal, which holds a bias or the forward's result
    "_scaled_dot_product_flash_attention": {"is_causal": 4},
    "_scaled_dot_product_flash_attention_for_cpu": {"is_causal": 4, "attn_mask": 5},
    "_scaled_dot_product_efficient_attention": {"is_causal": 6, "attn_bias": 3},
    "_scaled_dot_product_cudnn_attention": {"is_causal": 6, "attn_bias": 3},
    "_scaled_dot_product_flash_attention_backward": {"grad_out": 0, "is_causal": 11, "out": 4},
    "_scaled_dot_product_flash_attention_for_cpu_backward": {"grad_out": 0, "is_causal": 7, "out": 4},
    "_scaled_dot_product_efficient_attention_backward": {"grad_out_": 0, "is_causal": 11, "out": 5},
    "_scaled_dot_product_cudnn_attention_backward": {"grad_out": 0, "is_causal": 14, "out": 4},
    "convolution": {"weight": 1, "stride": 3, "padding": 4, "dilation": 5, "transposed": 6, "groups": 8},
    "_convolution": {"weight": 1, "stride": 3, "padding": 4, "dilation": 5, "transposed": 6, "groups": 8},
    "convolution_backward": {"grad_output": 0, "input": 1, "weight": 2, "transposed": 7, "output_mask": 10},
    "_scaled_mm": {"self": 0, "mat2": 1, "bias": 4},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_arguments_are_where_torch_has_them(name: str) -> None:
    torch = pytest.importorskip("torch")
    arguments = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    assert {found: arguments.index(found) for found in SCHEMAS[name]} == SCHEMAS[name]
    assert f"aten::{name}" in MATRIX


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (5, 3)])
def test_causal_attention_counts_what_is_looked_at(queries: int, keys: int) -> None:
    shapes = [[2, 3, queries, 8], [2, 3, keys, 8], [2, 3, keys, 8], [], [], []]
    pairs = sum(1 for i in range(queries) for j in range(keys) if j <= i)
    causal = flops("aten::_scaled_dot_product_flash_attention", shapes, ["", "", "", "0.", "True", "False"])
    assert causal == 2 * 2 * 3 * pairs * (8 + 8)


# bytes


def test_every_operand_and_the_result_once() -> None:
    assert moved("aten::mm", [[2, 3], [3, 5]]) == 4 * (6 + 15 + 10)
    assert moved("aten::addmm", [[5], [2, 3], [3, 5], [], []]) == 4 * (5 + 6 + 15 + 10)
    bf16 = ["c10::BFloat16"] * 2
    assert moved("aten::mm", [[2, 3], [3, 5]], bf16) == 2 * (6 + 15 + 10)
    assert moved("aten::add", [[4, 8], [4, 8], []]) == 4 * 96
    assert moved("aten::add", [[4, 1], [8], []]) == 4 * (4 + 8 + 32)
    assert moved("aten::add", [[4, 8], [4, 8]], ["c10::Half", "float"]) == 2 * 32 + 4 * 32 + 4 * 32
    assert moved("aten::mul_", [[4, 8], [8]]) == 4 * (32 + 8 + 32)
    assert moved("aten::copy_", [[4, 8], [4, 8], []], ["float", "c10::BFloat16", "Scalar"]) == 4 * 32 + 2 * 32
    assert moved("aten::zero_", [[4, 8]]) == 4 * 32
    assert moved("aten::eq", [[4, 8], [4, 8]]) == 4 * 64 + 32
    assert moved("aten::where", [[4, 8], [4, 8], []], ["bool", "float", "Scalar"]) == 32 + 4 * 32 + 4 * 32
    assert moved("aten::_softmax", [[4, 8], [], []]) == 4 * 64
    assert moved("triton_poi_fused_add_0", [[4, 8], [4, 8], [], []]) == 4 * 64
    assert moved("aten::_scaled_dot_product_flash_attention", [[1, 2, 4, 8]] * 3) == 4 * 64 * 4
    assert moved("aten::_scaled_dot_product_flash_attention_backward", [[1, 2, 4, 8]] * 5) == 4 * 64 * 8


def test_where_out_wants_the_result_is_no_operand() -> None:
    assert moved("aten::mul", [[4, 8], [], [4, 8]]) == 4 * 64
    assert moved("aten::sqrt", [[4, 8], [4, 8]]) == 4 * 64
    assert moved("aten::add", [[4, 8], [4, 8], [], [4, 8]]) == 4 * 96
    assert moved("aten::sum", [[4, 8], [], []]) == 4 * 32


def test_a_triton_kernel_touches_as_much_as_it_iterates() -> None:
    split = inputs("triton_poi_fused_split_0", [[8, 24], [8, 8], []], values=["", "", "64"])
    assert needs(split) == (0, 4 * 128, [])
    gather = inputs("triton_per_fused_embedding_0", [[8], [500, 4], [8, 4], [], []], values=["", "", "", "8", "4"])
    assert needs(gather) == (0, 4 * (8 + 32 + 32), [])


def test_expanded_operands_count_their_own_elements() -> None:
    assert moved("aten::add", [[4, 8], [4, 8]], strides=[[8, 1], [0, 1]]) == 4 * (32 + 8 + 32)


@pytest.mark.parametrize(
    "one",
    [
        inputs("aten::mm", [[2, 3]]),
        inputs("aten::mm", [[2, 3], [4, 5]]),
        inputs("aten::mm", [[], []]),
        inputs("aten::mm", [[2, 3], [3, 5]], ["float"]),
        inputs("aten::mm", [[2, 3], [3, 5]], ["strange", "strange"]),
        inputs("aten::add", [[2, 3], [4, 5]]),
        inputs("aten::add", ["x", 3, [[2], [3]]]),
        inputs("aten::convolution", [[1, 1, 8, 8], [1, 1, 3, 3]]),
        inputs("aten::convolution_backward", [[1, 1, 8, 8], [1, 1, 8, 8], [1, 1, 3, 3]], values=[""] * 11),
        inputs("aten::never_heard_of", [[2, 3]]),
    ],
)
def test_what_cannot_be_known_is_not_said(one: Call) -> None:
    assert needs(one) is None


# the analysis


def shapes(dims: Any, types: Any, values: Any = ()) -> dict[str, str]:
    return {"dims": json.dumps(dims), "types": json.dumps(types), "strides": "[]", "inputs": json.dumps(list(values))}


def products(kernel_name: str, kind: str, m: int = 1024, k: int = 1024, n: int = 1024, ns: int = 100_000) -> Any:
    """Two calls of a product, each with a second small kernel."""
    host = [op("aten::mm", 0, 10, shapes=0), call("l", 1, 1, 1), call("l", 3, 1, 2)]
    host += [op("aten::mm", 20, 10, shapes=0), call("l", 21, 1, 3), call("l", 23, 1, 4)]
    device = [kernel(kernel_name, 100, ns, 1), kernel("splitKreduce_kernel", 200 + ns, 500, 2)]
    device += [kernel(kernel_name, 1000 + ns, ns, 3), kernel("splitKreduce_kernel", 2000 + 2 * ns, 500, 4)]
    return view(make(host=host, device=device, shapes=[shapes([[m, k], [k, n]], [kind, kind])]))


def test_fp32_without_tensor_cores() -> None:
    (row,) = roofline(products(SIMT, "float"), H100)
    assert (row.op, row.shape, row.dtype) == ("aten::mm", "[1024, 1024] [1024, 1024]", "fp32")
    assert (row.ns, row.count) == (201_000, 2)
    assert row.flops == 2 * 2 * 1024**3
    assert row.bytes == 2 * 3 * 4 * 1024**2
    assert row.limit == "compute"
    assert row.of_peak == pytest.approx(2 * 2 * 1024**3 / 201e-6 / 50e12)
    assert (row.tensor_cores, row.why_not) == (False, "fp32 without TF32")


def test_tf32_has_its_own_peak() -> None:
    (row,) = roofline(products("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "float", 4096, 4096, 4096, 10**6), H100)
    assert (row.tensor_cores, row.why_not, row.limit) == (True, "", "compute")
    assert row.of_peak == pytest.approx(2 * 2 * 4096**3 / 2.001e-3 / 500e12)


def test_a_small_product_is_limited_by_its_launch() -> None:
    (row,) = roofline(products("nvjet_sm90_tst_64x64", "c10::BFloat16", 64, 64, 64, 5000), H100)
    assert row.limit == "launch"
    assert row.of_peak == pytest.approx(2 * 3 * 2 * 64**2 / 2000 / 11_000)


def test_a_thin_product_is_limited_by_bandwidth() -> None:
    (row,) = roofline(products("nvjet_sm90_tst_64x64", "c10::BFloat16", 8, 8192, 8192), H100)
    assert row.limit == "bandwidth"
    assert row.of_peak == pytest.approx(2 * 2 * (8192**2 + 2 * 8 * 8192) / 2000 / 201_000)


def test_no_peak_no_verdict() -> None:
    (row,) = roofline(products(SIMT, "float"), None)
    assert (row.limit, row.of_peak, row.flops) == ("unknown", None, 2 * 2 * 1024**3)
    t4 = peaks_of("Tesla T4")
    (row,) = roofline(products("ampere_bf16_s16816gemm", "c10::BFloat16"), t4)
    assert (row.limit, row.of_peak) == ("unknown", None)


def test_a_product_has_all_that_it_launches_and_no_more() -> None:
    trace = make(
        host=[
            op("aten::linear", 0, 100, shapes=0),  # under autocast: casts, then the product
            op("aten::to", 5, 20),
            op("aten::copy_", 6, 10, shapes=1),
            call("l", 7, 1, 1),
            op("aten::addmm", 40, 50, shapes=2),
            op("aten::copy_", 45, 10, shapes=1),
            call("l", 47, 1, 2),
            call("l", 60, 1, 3),
            op("aten::_local_scalar_dense", 200, 10, shapes=1),
            call("l", 202, 1, 4),
        ],
        device=[
            kernel("cast", 100, 1, 1),
            kernel("bias", 101, 2, 2),
            kernel("nvjet", 103, 4, 3),
            kernel("item", 300, 8, 4),
            kernel("lost", 400, 16),
        ],
        shapes=[
            shapes([[8, 8], [8, 8], [8]], ["float"] * 3),
            shapes([[8, 8], [8, 8], []], ["c10::BFloat16", "float", "Scalar"]),
            shapes([[8], [8, 8], [8, 8]], ["c10::BFloat16"] * 3),
        ],
    )
    assert {(row.op, row.dtype): row.ns for row in roofline(view(trace), H100)} == {
        ("aten::addmm", "bf16"): 6,
        ("aten::copy_", "bf16"): 1,
    }


def test_work_that_began_before_the_window_does_not_count() -> None:
    seen = products(SIMT, "float")
    assert [row.count for row in roofline(view(seen.trace, 500, 10**6), H100)] == [2]  # the first call's second kernel
    assert [row.count for row in roofline(view(seen.trace, 100_800, 10**6), H100)] == [1]


def test_same_sizes_with_other_strides_are_one_row() -> None:
    host = [op("aten::add", 0, 5, shapes=0), call("l", 1, 1, 1), op("aten::add", 10, 5, shapes=1), call("l", 11, 1, 2)]
    one = shapes([[4, 8], [4, 8]], ["float", "float"])
    trace = make(
        host=host,
        device=[kernel("a", 50, 5, 1), kernel("a", 60, 7, 2)],
        shapes=[one, {**one, "strides": "[[8, 1], [0, 1]]"}],
    )
    (row,) = roofline(view(trace), H100)
    assert (row.count, row.ns, row.bytes) == (2, 12, 4 * 96 + 4 * 72)


def test_the_place_of_a_row_is_the_one_with_most_of_its_time() -> None:
    host = [row for at in (0, 10, 20) for row in (op("aten::add", at, 5, shapes=0), call("l", at + 1, 1, at + 1))]
    device = [kernel("a", 50, 5, 1), kernel("a", 60, 3, 11), kernel("a", 70, 4, 21)]
    trace = make(host=host, device=device, shapes=[shapes([[4, 8], [4, 8]], ["float", "float"])])
    first, then = Place(file="a.py", line=1), Place(file="a.py", line=2)
    (row,) = roofline(View(trace, view(trace).window, {0: first, 2: then, 4: then}), H100)
    assert (row.count, row.ns, row.where) == (3, 12, then)


def test_broken_shapes_and_nothing() -> None:
    host = [op("aten::mm", 0, 5, shapes=0), call("l", 1, 1, 1)]
    broken = {"dims": "[[1,", "types": "5", "strides": "", "inputs": ""}
    assert roofline(view(make(host=host, device=[kernel("a", 50, 5, 1)], shapes=[broken])), H100) == ()
    assert roofline(view(make()), H100) == ()


@pytest.mark.parametrize(
    ("name", "dtype", "used", "why"),
    [("compiled-step", "bf16", True, ""), ("fp32-step", "fp32", False, "fp32 without TF32")],
)
def test_a_real_step_of_a_gpt(name: str, dtype: str, used: bool, why: str) -> None:
    """12 layers of 768 channels, 50304 words, 8 x 1024 tokens, full attention: forward, and twice that in backward."""
    trace = read(Path(__file__).parent / "data" / f"{name}.json.gz")
    rows = roofline(view(trace, int(trace.host["start"][0]), 1 << 62), peaks_of(trace.gpus[0].name))
    weights, attention = 12 * 12 * 768**2 + 768 * 50304, 12 * 2 * 96 * 1024 * 1024 * 64
    products = [row for row in rows if row.flops]
    assert sum(row.flops for row in products) == 3 * 2 * (8 * 1024 * weights + attention)
    assert {(row.dtype, row.tensor_cores, row.why_not) for row in products} == {(dtype, used, why)}
    rates = [row.flops / row.ns / 1e3 for row in products if row.shape.startswith("[8192, 768] [768, 50304]")]
    assert rates == [pytest.approx(51.3 if dtype == "fp32" else 707, rel=0.01)]
    assert all(row.of_peak is not None and 0 < row.of_peak < 1.15 for row in rows)


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("ampere_sgemm_128x64_tn", False),
        (SIMT, False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4", False),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_nn", False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", False),
        ("void gemv2T_kernel_val<int, int, float>", False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", True),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_nn", True),
        ("ampere_bf16_s1688gemm_bf16_128x128_nt", True),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4>", True),
        ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", True),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", True),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", None),
        ("triton_tem_fused_mm_0", None),
    ],
)
def test_kernel_names_tell_tensor_cores(name: str, used: bool | None) -> None:
    assert tensor_cores([name]) is used
    assert tensor_cores([name, "void at::native::vectorized_elementwise_kernel"]) is used


@pytest.mark.parametrize(
    ("dtype", "dims", "why"),
    [
        ("fp32", [1024, 1024, 1024], "fp32 without TF32"),
        ("fp64", [1024, 1024, 1024], "fp64"),
        ("bf16", [1024, 1023, 50257], "1023 and 50257 are not a multiple of 8"),
        ("fp16", [1024, 768, 50257], "50257 is not a multiple of 8"),
        ("bf16", [1, 768, 768], "a matrix times a vector"),
        ("bf16", [8, 8, 8], "tiny"),
        ("bf16", [1024, 1024, 1024], "unknown"),
        ("int64", [1024, 1024, 1024], "int64 operands"),
    ],
)
def test_why_not(dtype: str, dims: list[int], why: str) -> None:
    assert why_not(dtype, dims) == why


def test_a_recorded_trace_against_torchs_counter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 12)
    )
    x = torch.randn(4, 3, 8, 8)

    def step() -> None:
        out = model(x)
        out = torch.bmm(out.view(2, 4, 6), out.view(2, 6, 4))
        out.sum().backward()

    with counter(display=False) as counted:
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = read(path)
    seen = view(trace)
    host = trace.host
    total = 0
    for row, (name, shape) in enumerate(zip(host["name"].to_list(), host["shapes"].to_list(), strict=True)):
        if name in MATRIX and claimed(seen, host.with_row_index("row")["row"].to_numpy()[[row]])[0] == row:
            one = call_of(seen, name, shape)
            found = needs(one) if one is not None else None
            assert found is not None, name
            total += found[0]
    assert total == counted.get_total_flops()


# peaks


@pytest.mark.parametrize(
    ("name", "bf16", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 PCIe", 756.5, 2000),
        ("NVIDIA H100 NVL", 835.5, 3900),
        ("NVIDIA H200", 989.4, 4800),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100 80GB PCIe", 312, 1935),
        ("NVIDIA B200", 2250, 7700),
        ("NVIDIA L4", 121, 300),
        ("NVIDIA L40S", 362, 864),
        ("NVIDIA A10G", 70, 600),
        ("Tesla T4", None, 320),
        ("Tesla V100-SXM2-16GB", None, 900),
        ("NVIDIA GeForce RTX 3090", 71, 936),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008),
    ],
)
def test_known_devices(name: str, bf16: float | None, memory: float) -> None:
    found = peaks_of(name)
    assert found is not None
    assert (found.bf16, found.memory_gbs) == (bf16, memory)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA L40",
        "cpu",
    ],
)
def test_other_devices_are_not_guessed(name: str) -> None:
    assert peaks_of(name) is None


def test_rates_are_dense_and_in_order() -> None:
    for _, peaks in DEVICES:
        rates = [rate for rate in (peaks.fp64, peaks.fp32, peaks.tf32, peaks.fp16, peaks.fp8) if rate is not None]
        assert rates == sorted(rates)
        assert peaks.bf16 in (None, peaks.fp16)
        if peaks.tf32 is not None and peaks.fp16 is not None:
            assert 1.9 < peaks.fp16 / peaks.tf32 < 2.1  # half the rate for twice the bits
        if peaks.fp8 is not None and peaks.fp16 is not None:
            assert 1.9 < peaks.fp8 / peaks.fp16 < 2.1


def test_narrow_types_are_compared_with_tensor_cores_either_way() -> None:
    assert H100.tflops("bf16", False) == H100.tflops("bf16", True) == 1000
    assert (H100.tflops("fp32", False), H100.tflops("fp32", True)) == (50, 500)
    assert H100.tflops("fp64", True) == 30
    assert H100.tflops("int8", True) is None
