"""What `run --memory` finds: on hand-made usage, on both sides of each threshold."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.diagnose.compare import compare
from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.findings import all_findings, findings_of
from hotlap.diagnose.findings._base import Measured
from hotlap.memory.growth import growth
from hotlap.records.diagnosis import OF_MEMORY, Finding
from hotlap.records.files import write_record
from hotlap.records.memory import (
    Blocks,
    Events,
    Holder,
    Mark,
    MemoryLine,
    MemorySeries,
    MemoryUsage,
    MemoryWindow,
    Owner,
    Stays,
)
from hotlap.records.run import Facts, OptimizerFacts, Phases, Step
from made_runs import folder_of

MIB, GIB = 2**20, 2**30
WHERE = ("/w/train.py", 41, "main")
KEPT = Stays(where=WHERE, bytes=20_480.0, blocks=2.0, names=("losses[…]",))
STEPPED = OptimizerFacts(name="Adam", builtin=True, tensors=2, stepped=("train.py", 50, "main"))
FACTS = Facts(pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0", optimizers=(STEPPED,))


def of(name: str, usage: dict[str, Any], **changes: Any) -> Finding | None:
    given = {"device": "cuda:0", "source": "allocator", "peak_bytes": GIB, "step": 20, "phase": "forward"}
    measured = {"facts": FACTS, "usage": MemoryUsage(**{**given, **usage}), **changes}
    return all_findings()[name](Measured(10.0, Phases(forward=9.0), None, None, **measured))


def told(name: str, usage: dict[str, Any], **changes: Any) -> Finding:
    found = of(name, usage, **changes)
    assert found is not None
    assert found.id == name.replace("_", "-") and found.id in OF_MEMORY
    assert (found.bound, found.share, found.cost_ms) == ("memory", 0.0, None)
    assert len(found.instead.split()) <= 45
    return found


# memory_grows


GROWS = {"stays": (KEPT,), "grown_bytes": 20_480.0, "between_bytes": GIB, "total_bytes": 4 * GIB, "used_bytes": 2 * GIB}


def test_what_each_step_leaves_behind_grows() -> None:
    found = told("memory_grows", GROWS)
    assert found.title == "each step leaves 20 KiB behind, held by `losses[…]`"
    assert found.where is not None and (found.where.file, found.where.line) == ("/w/train.py", 41)
    assert found.evidence.startswith("2 tensors a step") and found.evidence.endswith("lasts 104,858 steps")
    assert ".cpu()" in found.instead


def test_what_holds_it_says_what_to_write() -> None:
    graph = told("memory_grows", {**GROWS, "stays": (msgspec.structs.replace(KEPT, graph=True),)})
    assert "append the number (`.item()`)" in graph.instead
    hidden = told("memory_grows", {**GROWS, "stays": (msgspec.structs.replace(KEPT, names=(), where=None),)})
    assert "hooks" in hidden.instead and hidden.where is None and "held by" not in hidden.title


def test_of_the_host_the_machines_memory_says_how_long_it_lasts() -> None:
    host = {**GROWS, "total_bytes": None, "used_bytes": None, "device": "cpu", "source": "operations"}
    assert "lasts 52,429 steps" in told("memory_grows", host, memory_bytes=2 * GIB).evidence
    assert "lasts" not in told("memory_grows", host).evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"stays": ()},
        {"grown_bytes": 0.0},  # a buffer that is full
        {"stays": (msgspec.structs.replace(KEPT, bytes=1000.0),), "grown_bytes": 1000.0},
    ],
)
def test_what_does_not_pile_up_does_not_grow(changes: dict[str, Any]) -> None:
    assert of("memory_grows", {**GROWS, **changes}) is None


# idle_gradients


def test_gradients_that_lie_through_the_forward() -> None:
    found = told("idle_gradients", {"idle_gradients_bytes": 100 * MIB})
    assert "100 MiB of the peak of 1.00 GiB" in found.evidence.replace("1 GiB", "1.00 GiB")
    assert found.where is not None and found.where.line == 50
    assert told("idle_gradients", {"idle_gradients_bytes": 100 * MIB}, facts=None).where is None


@pytest.mark.parametrize(
    ("usage", "changes"),
    [
        ({"idle_gradients_bytes": 50 * MIB}, {}),  # below 5%
        ({"phase": "optimizer"}, {}),  # the peak is elsewhere
        ({"phase": "data"}, {}),
        ({}, {"micro": (4.0, 8.0)}),  # they add up over several backwards
        ({}, {"facts": msgspec.structs.replace(FACTS, world=2)}),  # they may lie in buffers for the exchange
    ],
)
def test_gradients_that_cost_nothing_at_the_peak(usage: dict[str, Any], changes: dict[str, Any]) -> None:
    assert of("idle_gradients", {"idle_gradients_bytes": 100 * MIB, **usage}, **changes) is None


# memory_at_line


def line(category: Any = "activations", share: float = 0.4, peak: int = GIB, blocks: int = 3) -> MemoryLine:
    return MemoryLine(where=WHERE, category=category, bytes=int(share * peak), blocks=blocks)


@pytest.mark.parametrize(
    ("category", "phase", "advice"),
    [
        ("activations", "backward", "checkpoint"),
        ("temporaries", "forward", "in place"),
        ("temporaries", "optimizer", "fused=True"),
        ("outputs", "forward", "what the loss needs"),
    ],
)
def test_a_line_that_makes_much_of_the_peak(category: str, phase: str, advice: str) -> None:
    found = told("memory_at_line", {"lines": (line("parameters", 0.9), line(category)), "phase": phase})
    assert found.title == f"one line makes 40% of the memory peak ({category})"
    assert found.where is not None and found.where.line == 41
    assert "in 3 tensors" in found.evidence and phase in found.evidence and advice in found.instead


@pytest.mark.parametrize(
    "usage",
    [
        {"lines": ()},
        {"lines": (line(share=0.19),)},
        {"lines": (line(share=0.29, blocks=5),)},
        {"lines": (line(share=0.9, blocks=31),)},  # a layer, which a deep model calls again and again
        {"lines": (line("parameters"), line("gradients"), line("held"))},
        {"lines": (line(peak=30 * MIB),), "peak_bytes": 30 * MIB},  # of a small model
    ],
)
def test_other_lines_do_not(usage: dict[str, Any]) -> None:
    assert of("memory_at_line", usage) is None


# held_weights


def holder(name: str = "best[…]", share: float = 0.2, weights: bool = True) -> Holder:
    return Holder(name=name, bytes=int(share * GIB), blocks=12, weights=weights)


def test_a_variable_that_holds_a_copy_of_the_weights() -> None:
    found = told("held_weights", {"holders": (holder("kept[…]", 0.9, False), holder("ema", 0.9), holder())})
    assert found.title.startswith("`best[…]` holds 205 MiB") and "12 tensors" in found.evidence


@pytest.mark.parametrize("holders", [(), (holder(weights=False),), (holder(share=0.04),)])
def test_other_variables_do_not(holders: tuple[Holder, ...]) -> None:
    assert of("held_weights", {"holders": holders}) is None


# fragmentation


PIECES = {"reserved_bytes": 2 * GIB, "free_bytes": 64 * MIB}


def test_an_allocator_that_holds_much_more_than_is_used() -> None:
    found = told("fragmentation", PIECES)
    assert "2 GiB held, 1 GiB used" in found.evidence and "largest free block is 64 MiB" in found.evidence
    assert found.levers == ("allocator",)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "operations"},
        {"reserved_bytes": int(1.25 * GIB)},
        {"reserved_bytes": int(1.4 * GIB)},  # less than half a GiB beyond
        {"peak_bytes": 4 * GIB, "reserved_bytes": 5 * GIB},
    ],
)
def test_an_allocator_that_does_not(changes: dict[str, Any]) -> None:
    assert of("fragmentation", {**PIECES, **changes}) is None


# startup_peak, and what rises over the run


def early(when: str, peak: float, **usage: Any) -> dict[str, MemoryUsage]:
    return {
        when: MemoryUsage(device="cuda:0", source="allocator", peak_bytes=int(peak * GIB), step=0, phase="", **usage)
    }


def test_a_peak_before_the_loop_or_in_its_first_steps() -> None:
    before = early("before the loop", 2.0, lines=(line("unknown", 1.5),))
    found = told("startup_peak", {}, early={**before, **early("in the first steps", 1.5)})
    assert "before the loop" in found.title and "2 GiB then, 1 GiB in steady steps" in found.evidence
    assert found.where is not None and found.where.line == 41 and "meta" in found.instead
    first = told("startup_peak", {}, early=early("in the first steps", 1.2))
    assert first.where is None and "fused=True" in first.instead


@pytest.mark.parametrize("peak", [0.5, 1.05])
def test_a_peak_that_is_no_higher_is_not_told(peak: float) -> None:
    assert of("startup_peak", {}, early=early("before the loop", peak)) is None
    assert of("startup_peak", {"peak_bytes": 2**20}, early=early("before the loop", 0.01)) is None
    assert of("startup_peak", {}) is None


@pytest.mark.parametrize("resident", [True, False])
def test_memory_that_rises_over_the_run_where_the_steps_left_nothing(resident: bool) -> None:
    found = told("memory_grows", {}, series=series(4 * MIB, column="resident" if resident else "allocated"))
    assert "4 MiB a step" in found.title and "80 steps" in found.evidence
    assert ("host memory" in found.evidence) == resident


def series(rise: int, points: int = 120, column: str = "allocated") -> MemorySeries:
    sizes = tuple(2**28 + rise * at for at in range(points))
    return MemorySeries(steps=tuple(range(1, points + 1)), **{"allocated": (0,) * points, column: sizes})


def test_a_series_rises_steadily_or_does_not() -> None:
    found = growth(series(2**20))
    assert found is not None and found.bytes == pytest.approx(2**20) and not found.resident
    assert growth(series(2**20, column="resident")) is None
    host = growth(series(2**22, column="resident"))
    assert host is not None and host.resident
    assert growth(series(1000)) is None and growth(series(2**20, points=20)) is None
    jumps = series(2**20)
    flat = (*jumps.allocated[:60], *(jumps.allocated[60],) * 60)
    assert growth(msgspec.structs.replace(jumps, allocated=flat)) is None
    assert growth(MemorySeries()) is None


def test_a_buffer_that_is_full_leaves_nothing() -> None:
    rising = series(MIB)
    full = msgspec.structs.replace(rising, allocated=(*rising.allocated[:60], *(rising.allocated[60],) * 60))
    assert of("memory_grows", GROWS, series=full) is None
    emptied = msgspec.structs.replace(rising, allocated=rising.allocated[:40] * 3)  # each epoch
    assert of("memory_grows", GROWS, series=emptied) is not None
    assert of("memory_grows", GROWS, series=rising) is not None


def test_without_a_look_at_memory_none_is_told() -> None:
    found = findings_of(Measured(10.0, Phases(forward=9.0), None, None, FACTS))
    assert not {one.id for one in found} & set(OF_MEMORY)


# from the files of a run


def window(leak: int, line: int = 7) -> MemoryWindow:
    """Three steps; each leaves a tensor in a list."""
    rows, owners, marks = [], [], []
    for step in range(3):
        marks += [Mark(10 * step, "forward", step + 1), Mark(10 * step + 9, "step end", step + 2)]
        rows.append((0, 100 + step, leak, 10 * step + 5, 0))
        owners.append(Owner(100 + step, leak, "held", "kept[…]", 40))
    columns = dict(zip(("actions", "addresses", "bytes", "times", "stacks"), zip(*rows, strict=True), strict=True))
    return MemoryWindow(
        when="steady", device="cpu", source="operations", first_step=1, steps=3,
        frames=(("/w/train.py", line, "main"),),
        stacks=((0,),), blocks=Blocks(addresses=(100, 101, 102), bytes=(leak,) * 3, stacks=(0,) * 3),
        events=Events(**columns), marks=tuple(marks), owners=tuple(owners),
    )  # fmt: skip


def run_of(folder: Path, found: MemoryWindow | None) -> Path:
    lines = [Step(step=at, time=float(at), wall_ms=10.0, phases=Phases(forward=10.0)) for at in range(40)]
    made = folder_of(folder, (lines, FACTS))
    if found is not None:
        write_record(made / "rank-0" / "memory-steady.json", found)
    return made


def test_a_diagnosis_has_the_memory_of_the_run(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path / "run", window(4096)))
    assert found.memory is not None and found.memory.peak_bytes == 3 * 4096
    (one,) = [one for one in found.findings if one.id == "memory-grows"]
    assert "`kept[…]`" in one.title
    assert diagnose(run_of(tmp_path / "bare", None)).memory is None


@pytest.mark.parametrize("note", ["torch.compile is in use", ""])
def test_that_no_steps_were_looked_at_is_said(note: str, tmp_path: Path) -> None:
    made = run_of(tmp_path / "run", None)
    write_record(made / "rank-0" / "memory-steps.json", MemorySeries(note=note))
    said = [one for one in diagnose(made).unknown if one.startswith("memory was not looked at: ")]
    assert len(said) == 1 and (note or "the run ended before") in said[0]


def test_two_runs_differ_by_category_and_line(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", window(4096)), run_of(tmp_path / "b", window(1024, line=9))
    found = compare(before, after).memory
    assert found is not None and (found.before_bytes, found.after_bytes) == (12288, 3072)
    (category,), (one,) = found.categories, found.lines
    assert (category.category, category.more) == ("held", -9216)
    assert (one.where, one.more) == (("train.py", 9, "main"), -9216)
    assert compare(before, run_of(tmp_path / "c", None)).memory is None
