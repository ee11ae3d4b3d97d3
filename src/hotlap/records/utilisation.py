"""Record of MFU: how much of the device's arithmetic a step's model needs."""

import msgspec


class Products(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products, convolutions and attention of one dtype. flops: FLOPs a step, of one rank. tensor_cores: they
    are computed by these. tflops: TFLOP/s, the device's peak for such work (fp32 with tensor cores is TF32), None where
    no peak is known."""

    dtype: str
    flops: float
    tensor_cores: bool
    tflops: float | None = None


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOPs utilisation (MFU).

    mfu: 0 to 1, None where it is not known; why: mfu is not known. flops: model FLOPs a step of one rank, by dtype in
    `products`; recomputed: FLOPs a step that are not in `flops`, since a checkpoint computed them again; optimizer:
    FLOPs inside the optimizer's step, which are not in `flops` either. step_ms: of the step that mfu is of; profiled:
    step_ms is that under the profiler. device: its name. peaks: where its peak is from. devices: of the rank, their
    number. ranks: that mfu is the mean of.
    """

    mfu: float | None = None
    flops: float = 0.0
    recomputed: float = 0.0
    optimizer: float = 0.0
    step_ms: float = 0.0
    profiled: bool = True
    products: tuple[Products, ...] = ()
    device: str = ""
    devices: int = 1
    peaks: str = ""
    ranks: int = 1
    why: str = ""
