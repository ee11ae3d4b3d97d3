"""Hand-made contexts, as the agent and the diagnosis would have left them."""

from typing import Any

import msgspec

from hotlap.levers._base import Context
from hotlap.records.run import Facts, Gpu, LoaderFacts, OptimizerFacts, Phases, RootFacts
from made_runs import ENVIRONMENT as CPU_ENVIRONMENT
from made_runs import diagnosis_of

GPU_ENVIRONMENT = msgspec.structs.replace(
    CPU_ENVIRONMENT, driver="570", gpus=(Gpu(name="NVIDIA H100", memory_gib=80.0),)
)
LOADER = LoaderFacts(
    dataset="Digits", iterable=False, workers=0, batch_size=32, batches=64, training=True,
    batch_bytes=32 * 65 * 4,
)  # fmt: skip
ROOT = RootFacts(
    name="Net", parameters=1000, modules=7, devices=("cpu",), dtypes=("float32",), conv=2, conv_input_4d=True
)
OPTIMIZER = OptimizerFacts(name="Adam", builtin=True, tensors=4, devices=("cpu",), dtypes=("float32",))
CPU_FACTS = Facts(
    pid=1, rank=0, world=1, argv=("train.py",), python="3.11", torch="2.13.0", threads=4, cpu_bf16=True,
    mode="train", forwards=64, backwards=64, optimizer_steps=64, loaders=(LOADER,), roots=(ROOT,),
    optimizers=(OPTIMIZER,),
)  # fmt: skip
CUDA_FACTS = msgspec.structs.replace(
    CPU_FACTS, cuda="13.0", device="cuda", device_name="NVIDIA H100", capability=(9, 0),
    roots=(msgspec.structs.replace(ROOT, devices=("cuda:0",)),),
    optimizers=(msgspec.structs.replace(OPTIMIZER, devices=("cuda:0",)),),
)  # fmt: skip
PHASES = Phases(data=3.0, h2d=1.0, forward=2.0, backward=3.0, optimizer=0.5, other=0.5)


def context(
    cuda: bool, active: dict[str, dict[str, Any]] | None = None, bound: str = "compute", **facts: Any
) -> Context:
    """A script that every family of levers could help, on one device or the other."""
    base = CUDA_FACTS if cuda else CPU_FACTS
    diagnosis = diagnosis_of(
        bound=bound, step_ms=10.0, phases=PHASES, gpu_phases=PHASES if cuda else None, device="cuda" if cuda else "cpu"
    )
    environment = GPU_ENVIRONMENT if cuda else CPU_ENVIRONMENT
    return Context(diagnosis, msgspec.structs.replace(base, **facts), environment, active or {})


def empty(cuda: bool) -> Context:
    """A process of which nothing was seen but its steps."""
    return context(cuda, loaders=(), roots=(), optimizers=())
