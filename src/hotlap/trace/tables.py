"""The tables of a trace: what the columns mean. Times are integer nanoseconds; -1 stands for "none" in integer columns.

`host`, in order of start: what ran on CPU threads.

| column | type | meaning |
|---|---|---|
| name | str | as recorded |
| cat | str | `op` (cpu_op), `annotation` (user_annotation), `runtime` (cuda_runtime, cuda_driver), `python` \
(python_function), `overhead`, else the trace's own word |
| pid, tid | i64 | process and thread; a thread named by a text gets a negative number |
| start, dur | i64 | ns from the trace's `base_ns` |
| external | i64 | `External id` |
| correlation | i64 | joins a launch to device work |
| sequence, fwd_tid | i64 | autograd's `Sequence number` (a forward op's is its backward's too), `Fwd thread id` |
| shapes | i32 | row of `shapes`, -1 where not recorded |
| python_id, python_parent, module_id | i64 | of `python` rows |
| parent | i32 | row of the innermost event of the same thread that encloses this one |
| depth | i16 | number of enclosing events |

`device`, in order of start: what ran on GPUs.

| column | type | meaning |
|---|---|---|
| name | str | as recorded |
| cat | str | `kernel`, `memcpy`, `memset`, `annotation` (gpu_user_annotation: no work), `sync` (cuda_sync: no work) |
| device, context, stream | i64 | |
| start, dur | i64 | ns from `base_ns` |
| correlation, external | i64 | |
| bytes | i64 | of memcpy and memset |
| blocks, threads | i64 | product of `grid`; product of `block` |
| registers, shared_memory | i64 | per thread; bytes per block |
| occupancy | f32 | estimated, percent; NaN unknown |
| graph_node, graph | i64 | `graph node id`, `graph id`, of CUDA graphs |
| collective | i32 | row of `collectives` |
| launch | i32 | row of `host`: the runtime or driver call that launched it, by correlation |
| op | i32 | row of `host`: the innermost `op` around the launch, or the op with the same External id |

`memory`, in order of time: `[memory]` instants. time, address, bytes (negative: freed), device_type, device,
allocated, reserved (totals after it).

`shapes`: dims, types, strides, inputs: JSON texts of `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`.

`collectives`: name, dtype, in_elements, out_elements, group_size, group_ranks (text), group, group_description,
comms_id (text), one row per distinct description.

`threads`: pid, tid, process (name), thread (name), labels, as metadata events say.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]

HOST: Final[dict[str, type[pl.DataType]]] = {
    "name": pl.String,
    "cat": pl.String,
    "pid": pl.Int64,
    "tid": pl.Int64,
    "start": pl.Int64,
    "dur": pl.Int64,
    "external": pl.Int64,
    "correlation": pl.Int64,
    "sequence": pl.Int64,
    "fwd_tid": pl.Int64,
    "shapes": pl.Int32,
    "python_id": pl.Int64,
    "python_parent": pl.Int64,
    "module_id": pl.Int64,
    "parent": pl.Int32,
    "depth": pl.Int16,
}
DEVICE: Final[dict[str, type[pl.DataType]]] = {
    "name": pl.String,
    "cat": pl.String,
    "device": pl.Int64,
    "context": pl.Int64,
    "stream": pl.Int64,
    "start": pl.Int64,
    "dur": pl.Int64,
    "correlation": pl.Int64,
    "external": pl.Int64,
    "bytes": pl.Int64,
    "blocks": pl.Int64,
    "threads": pl.Int64,
    "registers": pl.Int64,
    "shared_memory": pl.Int64,
    "occupancy": pl.Float32,
    "graph_node": pl.Int64,
    "graph": pl.Int64,
    "collective": pl.Int32,
    "launch": pl.Int32,
    "op": pl.Int32,
}
MEMORY: Final[dict[str, type[pl.DataType]]] = {
    "time": pl.Int64,
    "address": pl.Int64,
    "bytes": pl.Int64,
    "device_type": pl.Int64,
    "device": pl.Int64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}
SHAPES: Final[dict[str, type[pl.DataType]]] = {
    "dims": pl.String,
    "types": pl.String,
    "strides": pl.String,
    "inputs": pl.String,
}
COLLECTIVES: Final[dict[str, type[pl.DataType]]] = {
    "name": pl.String,
    "dtype": pl.String,
    "in_elements": pl.Int64,
    "out_elements": pl.Int64,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "group": pl.String,
    "group_description": pl.String,
    "comms_id": pl.String,
}
THREADS: Final[dict[str, type[pl.DataType]]] = {
    "pid": pl.Int64,
    "tid": pl.Int64,
    "process": pl.String,
    "thread": pl.String,
    "labels": pl.String,
}
TABLES: Final = {
    "host": HOST,
    "device": DEVICE,
    "memory": MEMORY,
    "shapes": SHAPES,
    "collectives": COLLECTIVES,
    "threads": THREADS,
}

WORK: Final = ("kernel", "memcpy", "memset")
"""Categories of `device` that are work; the others only mark it."""


@dataclass(frozen=True)
class Gpu:
    """A device as the trace's `deviceProperties` say it; 0 and "" unknown."""

    id: int
    name: str = ""


@dataclass(frozen=True)
class Losses:
    """What could not be read. events: lost; repaired: read after a repair; bytes: of a torn end; why: in words."""

    events: int = 0
    repaired: int = 0
    bytes: int = 0
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One rank's trace. source: the file; base_ns: what times count from (epoch ns); rank: from distributedInfo,
    None where absent; skipped: events by kind that hold nothing for the tables."""

    source: str
    host: pl.DataFrame
    device: pl.DataFrame
    memory: pl.DataFrame
    shapes: pl.DataFrame
    collectives: pl.DataFrame
    threads: pl.DataFrame
    base_ns: int = 0
    rank: int | None = None
    gpus: tuple[Gpu, ...] = ()
    schema_version: str = ""
    losses: Losses = field(default_factory=Losses)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def work(self) -> pl.DataFrame:
        """Rows of `device` that are work."""
        return self.device.filter(pl.col("cat").is_in(WORK))


def empty(schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """A table without rows."""
    return pl.DataFrame(schema=schema)
