"""Names of kernels as they are shown."""

import pytest

from hotlap.records.kernel_names import MOST, short

CUTLASS = (
    "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemmMultistage"
    "INS_4gemm9GemmShapeILi64ELi128ELi32EEENS4_52Conv2dWgradOutputGradientTileAccessIteratorOptimizedE"
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (CUTLASS, "cutlass__5x_cudnn::Kernel<conv::kernel::ImplicitGemmConvolu…"),
        ("_ZN2at6native12reduce_floatILi512ELi1EEEvv", "at::native::reduce_float"),
        ("_Z8my_scalePfi", "my_scale"),
        ("_Z", "_Z"),
        ("_Z9", "_Z9"),
        ("void at::native::fill<float>(int)", "at::native::fill<float>(int)"),
        ("train.py(12): <lambda>", "train.py(12): <lambda>"),
        ("sm90_gemm_" + "x" * 90, "sm90_gemm_" + "x" * 49 + "…"),
        ("", ""),
    ],
)
def test_names_are_cut_to_what_can_be_read(name: str, shown: str) -> None:
    assert short(name) == shown and len(short(name)) <= MOST


def test_types_may_be_left_out() -> None:
    assert short("void at::native::fill<float>(int)", types=False) == "at::native::fill"
    assert short("train.py(12): <lambda>", types=False) == "train.py(12): <lambda>"
