"""Collectives over all ranks: who arrived when, what was waited, how fast the rest went.

A call is one communication kernel on every rank of its process group. A rank arrives when its kernel starts and is done
when it ends; the call starts to transfer when the last rank has arrived (before that, kernels of the others spin) and
is over when the last rank is done. Group, name, sizes and dtype come from the kernel's metadata; a kernel without (its
launch came before the profiler) has its name from the kernel's, and its group from others on the same stream.

Clocks. `base_ns + start` is one clock for the ranks of a host; clocks of hosts differ. A call that needs something from
every rank (`SYNCHRONISING`) ends on all of them nearly together: within 0.1 ms on four H200s, whoever came late. So a
rank's offset is the one at which most of its ends fall together with those of a rank it shares a group with, and the
median of these differences. None is preferred if it fits half of the calls; less than 50 us counts as none, for that is
the order in which ranks finish. Clocks are taken not to drift within the trace.

Matching. Calls of one group and one name follow one another, so their ends lie apart: two kernels belong to one call if
on the common clock each one's end is the nearest to the other's, and they overlap (with 0.2 ms of grace). That is the
k-th call here with the k-th call there, also where a rank has a record less. Sends and receives are
matched in groups of two only: a trace does not say whom they talk to.

Bandwidth, as nccl-tests count it (doc/PERFORMANCE.md, and src/alltoall.cu, src/sendrecv.cu). Algorithm bandwidth is
bytes / time, bus bandwidth that times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all,
gather and scatter, 1 for broadcast, reduce, send and recv. Bytes are those of the whole array: the output of
all_gather, the input of reduce_scatter. Time is from the last arrival to the end: waiting for a late rank is no part.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.trace import Collective
from hotlap.trace.intervals import Ints, covered
from hotlap.trace.view import View

from .grouping import packed_places, unpacked
from .shares import CALLS, DeviceShare, Share

Key = tuple[str, str]
"""Group and name."""

SYNCHRONISING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""No rank can finish before every rank has arrived."""
PAIRWISE: Final = ("send", "recv", "send_recv")
ITEM_BYTES: Final = {
    "double": 8,
    "long": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
}
"""Size of a dtype as traces spell it, in lower case; all others (bytes, bools, 8-bit floats) take one byte."""
APART_NS: Final = 200_000
"""Ends of one call differ by less, over the ranks; narrower where calls follow one another faster."""
SAME_CLOCK_NS: Final = 50_000
PROBES: Final = 64
PARTS: Final[dict[str, type[pl.DataType]]] = {"lane": pl.Int64, **CALLS}


@dataclass(frozen=True)
class Lane:
    """One device of one rank. clock_ns: what to add to its trace's times to be on the common clock."""

    share: Share
    device: DeviceShare
    clock_ns: int


@dataclass(frozen=True)
class Calls:
    """Communication kernels of all ranks; a lane is a device of one.

    parts: a row a kernel: lane, name, group, label, dtype, elements (of the whole array; 0 unknown, -1 other on each
    rank), volume (the same, a mean where ranks differ), size (ranks of the group, 0 unknown), start and end (common
    clock), ns and exposed (within the window, in all and without compute), and call: the same for kernels of one call.
    """

    shares: tuple[Share, ...]
    lanes: tuple[Lane, ...]
    parts: pl.DataFrame

    @cached_property
    def complete(self) -> pl.DataFrame:
        """Calls that are in the window and known on every lane of their group, two at least: call, name, first and last
        arrival, second (the one before the last), end, late (lane of the last), waited (sum over lanes), parts,
        size (ranks of the group)."""
        lanes = self.parts.group_by("group").agg(pl.col("lane").n_unique().alias("lanes"))
        return (
            self.parts.sort("start", maintain_order=True)
            .group_by("call", maintain_order=True)
            .agg(
                pl.col("group", "name").first(),
                pl.col("start").first().alias("first"),
                pl.col("start").last().alias("last"),
                pl.col("start").get(pl.len() - 2, null_on_oob=True).alias("second"),
                pl.col("end").max(),
                pl.col("lane").last().alias("late"),
                (pl.col("start").last() - pl.col("start")).sum().alias("waited"),
                pl.len().cast(pl.Int64).alias("parts"),
                pl.col("size").max(),
                pl.col("ns").max(),
            )
            .join(lanes, on="group")
            .filter((pl.col("parts") == pl.col("lanes")) & (pl.col("parts") >= 2) & (pl.col("ns") > 0))
        )


def collectives(calls: Calls) -> tuple[Collective, ...]:
    """Collectives by name, group, dtype and size, dearest first. Times between ranks are None where no call is known on
    two ranks; bandwidth also where not every rank of the group is known: the last arrival may be one of the others."""
    mine = calls.parts.filter(pl.col("ns") > 0)
    rows = [_record(calls, rows) for _, rows in mine.group_by("name", "group", "dtype", "elements")]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.ns, row.name, row.group, row.bytes)))


def _record(calls: Calls, parts: pl.DataFrame) -> Collective:
    name, dtype = str(parts["name"][0]), str(parts["dtype"][0])
    known = calls.complete.join(parts.select("call").unique(), on="call", how="semi")
    ranks, size = parts["lane"].n_unique(), int(parts["size"].to_numpy().max())
    whole = known.filter(pl.col("parts") >= pl.col("size"))
    transfer = _median(whole["end"] - whole["last"])
    volume = round(float(parts["volume"].to_numpy().mean())) * item_bytes(dtype)
    algorithm = volume / transfer if transfer and volume else None
    return Collective(
        name=name,
        group=str(parts["label"][0]),
        dtype=dtype,
        bytes=volume,
        ranks=ranks,
        group_size=size,
        count=int(parts["lane"].value_counts()["count"].to_numpy().max()),
        ns=int(parts["ns"].sum()),
        exposed_ns=int(parts["exposed"].sum()),
        transfer_ns=transfer,
        wait_ns=round(int(known["waited"].sum()) / int(known["parts"].sum())) if len(known) else None,
        skew_ns=_median(known["last"] - known["first"]),
        algorithm_gbs=algorithm,
        bus_gbs=algorithm * bus_factor(name, max(size, ranks)) if algorithm is not None else None,
    )


def _median(values: pl.Series) -> int | None:
    return round(float(np.median(values.to_numpy()))) if len(values) else None


def bus_factor(name: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return ITEM_BYTES.get(dtype.lower(), 1)


def talks_at(view: View) -> Place | None:
    """The line that issued most of the exposed communication, of what has a known one: where DistributedDataParallel
    starts its buckets, that of the backward."""
    spent: Counter[str] = Counter()
    for device in view.devices:
        mine = (pl.col("device") == device) & (pl.col("kind") == "communication") & (pl.col("launch") >= 0)
        talks = view.work.filter(mine)
        starts, ends = talks["from"].to_numpy(), talks["to"].to_numpy()
        exposed = ends - starts - covered(view.busy(device, "compute"), starts, ends)
        where = packed_places(view, talks["launch"].to_numpy().astype(np.int64)) if len(talks) else ()
        for at, ns in zip(where, exposed.tolist(), strict=True):
            spent[at] += ns if at else 0
    known = [(ns, at) for at, ns in spent.items() if ns > 0]
    return unpacked(max(known)[1]) if known else None


# which kernels are one call


def match(each: Sequence[Share]) -> Calls:
    """Communication kernels of all ranks on one clock, matched."""
    lanes = [Lane(one, device, one.base_ns) for one in each for device in one.devices]
    parts = pl.concat([pl.DataFrame(schema=PARTS), *(_on_clock(index, lane) for index, lane in enumerate(lanes))])
    shifts = _shifts(parts, len(lanes))
    by_lane = pl.Series("shift", shifts, pl.Int64).gather(parts["lane"])
    parts = parts.with_columns(pl.col("start") + by_lane, pl.col("end") + by_lane)
    parts = _agreed(parts.with_columns(pl.Series("call", _calls(parts), pl.Int64)))
    clocks = (replace(lane, clock_ns=lane.clock_ns + shift) for lane, shift in zip(lanes, shifts, strict=True))
    return Calls(tuple(each), tuple(clocks), parts)


def _on_clock(index: int, lane: Lane) -> pl.DataFrame:
    return lane.device.calls.select(
        pl.lit(index, pl.Int64).alias("lane"), pl.all().exclude("start", "end"), pl.col("start", "end") + lane.clock_ns
    ).select(*PARTS)


def _shifts(parts: pl.DataFrame, lanes: int) -> list[int]:
    """What to add to each lane's times; 0 for the first lane, and the first of those that share no group with it."""
    ends = _ends(parts.filter(pl.col("name").is_in(SYNCHRONISING)))
    anchors: dict[Key, int] = {}
    shifts: dict[int, int] = {}
    while len(shifts) < lanes:
        waiting = [lane for lane in range(lanes) if lane not in shifts]
        reached = [lane for lane in waiting if any(key in anchors for key in ends.get(lane, {}))]
        for lane in reached or waiting[:1]:
            mine = ends.get(lane, {})
            key = max((k for k in mine if k in anchors), key=lambda k: len(mine[k]), default=None)
            shifts[lane] = 0 if key is None else shifts[anchors[key]] + clock_offset(ends[anchors[key]][key], mine[key])
            for k in mine:
                anchors.setdefault(k, lane)
    return [shifts[lane] for lane in range(lanes)]


def _ends(parts: pl.DataFrame) -> dict[int, dict[Key, Ints]]:
    """Sorted ends by lane, then by group and name."""
    found: dict[int, dict[Key, Ints]] = {}
    for (lane, group, name), rows in parts.group_by("lane", "group", "name"):
        found.setdefault(int(str(lane)), {})[str(group), str(name)] = np.sort(rows["end"].to_numpy())
    return found


def clock_offset(reference: Ints, ends: Ints) -> int:
    """What to add to `ends` so that most of them fall together with those of `reference`; both sorted.

    No offset is preferred where it fits half of the calls; else the one that fits most, of equals the smallest.
    """
    probes = reference[np.linspace(0, len(reference) - 1, min(PROBES, len(reference))).astype(np.int64)]
    tolerance = _tolerance(reference)
    near = probes - ends[_nearest(ends, probes)]
    near = near[np.abs(near) <= tolerance]
    if 2 * len(near) >= min(len(probes), len(ends)):
        return _settled(near)
    all_ = np.sort((probes[:, None] - ends[None, :]).ravel())
    fits = np.searchsorted(all_, all_ + tolerance, side="right") - np.arange(len(all_))
    best = np.nonzero(fits == fits.max())[0]
    first = int(best[np.argmin(np.abs(all_[best]))])
    return _settled(all_[first : first + int(fits[first])])


def _tolerance(ends: Ints) -> int:
    """How far apart the ends of one call may be: a quarter of the usual time between calls, at most 0.2 ms."""
    spacing = int(np.median(np.diff(ends))) if len(ends) > 1 else 4 * APART_NS
    return min(APART_NS, max(5_000, spacing // 4))


def _settled(differences: Ints) -> int:
    offset = round(float(np.median(differences)))
    return offset if abs(offset) >= SAME_CLOCK_NS else 0


def _nearest(ends: Ints, times: Ints) -> Ints:
    """Index of the nearest of the sorted `ends` to each time; of two equally near, the earlier."""
    right = np.clip(np.searchsorted(ends, times), 1, max(1, len(ends) - 1))
    right = np.minimum(right, len(ends) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(times - ends[left]) <= np.abs(ends[right] - times), left, right)


def _calls(parts: pl.DataFrame) -> Ints:
    """A number for each kernel, the same for those of one call: the row of the first lane's kernel."""
    call = np.arange(len(parts), dtype=np.int64)
    starts, ends = parts["start"].to_numpy(), parts["end"].to_numpy()
    keyed = parts.with_row_index("row").with_columns(
        pl.when(pl.col("name").is_in(PAIRWISE) & (pl.col("size") == 2))
        .then(pl.lit("pair"))
        .otherwise("name")
        .alias("key")
    )
    for (_, key), rows in keyed.sort("end").group_by("group", "key", maintain_order=True):
        if key in PAIRWISE:
            continue
        by_lane = [lane["row"].to_numpy().astype(np.int64) for lane in rows.partition_by("lane")]
        reference = max(by_lane, key=len)
        for mine in by_lane:
            if mine is not reference:
                here, there = _mutual(starts, ends, mine, reference)
                call[here] = there
    return call


def _mutual(starts: Ints, ends: Ints, mine: Ints, reference: Ints) -> tuple[Ints, Ints]:
    """Rows of `mine` and of `reference` (both in order of end) that are each other's nearest and overlap."""
    there = _nearest(ends[reference], ends[mine])
    back = _nearest(ends[mine], ends[reference])
    both = back[there] == np.arange(len(mine))
    here, there = mine[both], reference[there[both]]
    overlap = (starts[here] <= ends[there] + APART_NS) & (starts[there] <= ends[here] + APART_NS)
    return here[overlap], there[overlap]


def _agreed(parts: pl.DataFrame) -> pl.DataFrame:
    """Sizes of a call, as the ranks that say one have it; of all_to_all each rank's own differs, so their mean."""
    known = pl.when(pl.col("elements") > 0).then("elements")
    size = pl.when(pl.col("name") == "all_to_all").then(-1).otherwise(pl.col("elements").max().over("call"))
    return parts.with_columns(
        known.mean().over("call").fill_null(0).alias("volume"),
        pl.col("dtype", "size").max().over("call"),
        size.alias("elements"),
    )
