"""Matrix products by cuBLASLt, where torch would take cuBLAS: the same products by other kernels.

Each chooses its kernel by a rule of thumb of its own, and which is the faster depends on the shapes. torch asks
cuBLASLt anew at each call, which costs the host time, so it is for steps that do not wait for launches. Whether sums
may be reduced in half precision stays as the script has it.
"""

import os
import warnings
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

SHARE: Final = 0.1
"""Of forward and backward, at most."""
CONVOLVES: Final = 0.2
"""Share of a model's modules that are convolutions from which on these, and not products, are most of its work."""
VARIABLES: Final = ("TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT")
"""torch takes the second for the first."""
LIBRARY, USUAL = "cublaslt", "Cublas"
"""As torch takes it; and the name of what it prefers where nobody says."""


class BlasLibrary(Lever):
    name = "blas-library"
    meaning = "matrix products by cuBLASLt in place of cuBLAS"
    risk = "numeric"
    tolerance = 0.005
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; cuBLASLt is CUDA's")
        if facts.cuda is None:
            return Applies(False, "this torch is built for ROCm, where it chooses between the libraries by the device")
        if own := [name for name in VARIABLES if name in os.environ]:
            return Applies(False, f"{own[0]} is set already")
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if all(root.conv > CONVOLVES * root.modules and not (root.sdpa or root.softmax) for root in facts.roots):
            return Applies(False, "the model mostly convolves, which is cuDNN's")
        if context.diagnosis.bound == "launch":
            return Applies(False, "the step waits for launches, and each product would take longer to launch")
        return Applies(True, "torch takes matrix products from cuBLAS where nobody says otherwise")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        looked, before = False, None

        def prefer(_: Any) -> None:  # before the first forward: by then the script has said what it prefers
            nonlocal looked, before
            if not looked:
                looked = True
                before = _prefer()

        def as_before(_: Any) -> None:
            nonlocal looked, before
            if before is not None:
                _set(before)
                looked, before = False, None

        seams.on_root(prefer, as_before)

    def source(self, settings: Settings) -> str:
        return f'torch.backends.cuda.preferred_blas_library("{LIBRARY}")  # before the loop'


def _prefer() -> Any:
    """Returns what was preferred before."""
    import torch

    from hotlap.agent.seams import Refused

    library = getattr(torch.backends.cuda, "preferred_blas_library", None)
    if library is None:
        raise Refused("this torch has no choice of the library")
    before = library()
    if before.name != USUAL:
        raise Refused(f"the script prefers {before.name} itself")
    _set(LIBRARY)
    return before


def _set(library: Any) -> None:
    import torch

    with warnings.catch_warnings():  # that it is an experimental feature
        warnings.simplefilter("ignore")
        torch.backends.cuda.preferred_blas_library(library)


LEVER = BlasLibrary()
