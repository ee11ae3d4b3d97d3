"""What a device can do at most."""

from typing import Annotated

import msgspec

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """What one device can do. TFLOP/s of matrix products by input type; None where it has no such unit, or it was not
    measured.

    fp32, fp64: without tensor cores, TFLOP/s. tf32, bf16, fp16, fp8, fp64_tensor: with tensor cores, TFLOP/s.
    memory_gbs: of its memory, GB/s (1e9). memory_gib: its size as torch sees it, GiB. source: a data sheet, or what
    measured it and when.
    """

    name: str
    fp32: Rate
    memory_gbs: Rate
    memory_gib: Rate | None = None
    bf16: Rate | None = None
    fp16: Rate | None = None
    tf32: Rate | None = None
    fp64: Rate | None = None
    fp64_tensor: Rate | None = None
    fp8: Rate | None = None
    source: str = "data sheet"

    def tflops(self, dtype: str, tensor_cores: bool) -> float | None:
        """For operands of a dtype (`fp32`, `bf16`, ...). tensor_cores: whether fp32 and fp64 use them; the narrow
        types are compared with tensor cores either way, as there they could be used."""
        if dtype == "fp32":
            return self.tf32 if tensor_cores and self.tf32 else self.fp32
        if dtype == "fp64":
            return self.fp64_tensor if tensor_cores and self.fp64_tensor else self.fp64
        return {"bf16": self.bf16, "fp16": self.fp16, "fp8": self.fp8}.get(dtype)
