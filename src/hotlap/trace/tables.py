"""The tables of a trace: what the columns mean. Times are integer nanoseconds; -1 stands for "none" in integer columns.

`host`, in order of start: what ran on CPU threads.

| column | type | meaning |
|---|---|---|
| name | str | as recorded |
| cat | str | `op` (cpu_op), `annotation` (user_annotation), `runtime` (cuda_runtime, cuda_driver), `python` \
(python_function), `overhead` |
| pid, tid | i64 | process and thread; a thread named by a text gets a negative number |
| start, dur | i64 | ns from the trace's `base_ns` |
| external | i64 | `External id` |
| correlation | i64 | joins a launch to device work |
| sequence, fwd_tid | i64 | autograd's `Sequence number` (a forward op's is its backward's too), `Fwd thread id` |
| shapes | i32 | row of `shapes`, -1 where not recorded |
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

from dataclasses import dataclass
from typing import Final

import polars as pl

Schema = dict[str, type[pl.DataType]]


def _ints(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Int64)


def _texts(*names: str) -> Schema:
    return dict.fromkeys(names, pl.String)


HOST: Final[Schema] = {
    **_texts("name", "cat"),
    **_ints("pid", "tid", "start", "dur", "external", "correlation", "sequence", "fwd_tid"),
    "shapes": pl.Int32,
    "parent": pl.Int32,
    "depth": pl.Int16,
}
DEVICE: Final[Schema] = {
    **_texts("name", "cat"),
    **_ints("device", "context", "stream", "start", "dur", "correlation", "external", "bytes", "blocks", "threads"),
    **_ints("registers", "shared_memory", "graph_node", "graph"),
    **dict.fromkeys(("collective", "launch", "op"), pl.Int32),
}
MEMORY: Final = _ints("time", "address", "bytes", "device_type", "device", "allocated", "reserved")
SHAPES: Final = _texts("dims", "types", "strides", "inputs")
COLLECTIVES: Final[Schema] = {
    **_texts("name", "dtype"),
    **_ints("in_elements", "out_elements", "group_size"),
    **_texts("group_ranks", "group", "group_description", "comms_id"),
}
THREADS: Final[Schema] = {**_ints("pid", "tid"), **_texts("process", "thread", "labels")}
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


@dataclass(frozen=True, eq=False)
class Trace:
    """One rank's trace. source: the file; base_ns: what times count from (epoch ns); rank: from distributedInfo,
    None where absent."""

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
    losses: Losses = Losses()

    @property
    def work(self) -> pl.DataFrame:
        """Rows of `device` that are work."""
        return self.device.filter(pl.col("cat").is_in(WORK))
