"""What is told of memory that ran out, on records made by hand."""

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.levers import all_levers
from hotlap.memory.changes import changes, few, lacking
from hotlap.memory.ran_out import every_change, ran_out
from hotlap.memory.usage import usage
from hotlap.records.files import to_json, write_record
from hotlap.records.memory import (
    Blocks,
    Events,
    Holder,
    MemoryPart,
    MemoryUsage,
    MemoryWindow,
    OutOfMemory,
    Owner,
    Segment,
)
from hotlap.records.ran_out import MemoryChange
from hotlap.records.run import Environment, Facts, LoaderFacts, OptimizerFacts, Phases, RootFacts, Run, Step
from hotlap.records.telemetry import GpuSample, TelemetrySample
from hotlap.runs.folder import RunFolder
from made_runs import FACTS, RUN, folder_of

GIB, MIB = 1 << 30, 1 << 20
LINE = ("/w/train.py", 12, "forward")
STEP = Step(step=0, time=0.0, wall_ms=1.0, phases=Phases())
ROOT = RootFacts(name="Net", parameters=100, modules=9, devices=("cuda:0",), dtypes=("float32",), blocks=8, block="B")
SEEN = msgspec.structs.replace(
    FACTS, device="cuda", capability=(9, 0), device_uuid="GPU-1", mode="train", roots=(ROOT,),
    loaders=(LoaderFacts(dataset="D", iterable=False, workers=4, batch_size=32, training=True, batches=3),),
    optimizers=(OptimizerFacts(name="AdamW", builtin=True, tensors=9),),
)  # fmt: skip
MACHINE = Environment(hotlap="0", python="3", os="", cpu="", cores=8, memory_gib=64.0, driver="1")
FAILED = msgspec.structs.replace(RUN, status="failed", exit_code=1, environment=MACHINE)


def window(*lives: tuple[int, int, int, int], owners: tuple[Owner, ...] = (), **told: Any) -> MemoryWindow:
    """lives: address, MiB, when it was allocated (-1: no event), stack (-1: none)."""
    events = [one for one in lives if one[2] >= 0]
    columns = [*zip(*((0, address, size * MIB, at, stack) for address, size, at, stack in events), strict=True)]
    names = ("actions", "addresses", "bytes", "times", "stacks")
    held = sum(size for _, size, *_ in lives) * MIB
    ran = {"asked_bytes": GIB, "frames": (LINE,), "phase": "forward", "step": 5, "began": 100, "grad": True, **told}
    return MemoryWindow(
        when="oom", device="cuda:0", source="allocator", frames=(LINE,), stacks=((0,),), owners=owners,
        events=Events(**dict(zip(names, columns, strict=False))) if columns else Events(),
        blocks=Blocks(
            addresses=tuple(one[0] for one in lives), bytes=tuple(one[1] * MIB for one in lives),
            stacks=tuple(one[3] for one in lives),
        ),
        allocated_bytes=held, reserved_bytes=held, used_bytes=held, ran_out=OutOfMemory(**ran),
    )  # type: ignore[arg-type]  # fmt: skip


def parts(of: MemoryWindow) -> dict[str, int]:
    return {one.category: one.bytes // MIB for one in usage(of).parts}


WEIGHT, OLD, NEW, BARE, HIDDEN = (1, 10, 10, 0), (2, 20, 50, 0), (3, 40, 150, 0), (4, 80, 160, -1), (5, 160, 170, 0)
OWNED = (
    Owner(address=1, bytes=10 * MIB, category="parameters", name="weight", time=180),
    Owner(address=5, bytes=160 * MIB, category="outputs", name="hidden", time=180),
)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, {"activations": 280, "unknown": 20}),
        ({"grad": False}, {"temporaries": 120, "outputs": 160, "unknown": 20}),
        ({"grad": None}, {"activations": 280, "unknown": 20}),
        # what the backward makes has no line of the user's
        ({"phase": "backward"}, {"activations": 200, "temporaries": 80, "unknown": 20}),
        ({"phase": "optimizer"}, {"temporaries": 120, "outputs": 160, "unknown": 20}),
        ({"phase": "h2d"}, {"inputs": 120, "outputs": 160, "unknown": 20}),
        ({"phase": "other"}, {"outputs": 160, "unknown": 140}),
        # not known when the step began: what is unowned is put down to the model while it runs
        ({"began": None}, {"activations": 140, "outputs": 160}),
        ({"began": None, "phase": "before the loop"}, {"outputs": 160, "unknown": 140}),
    ],
)
def test_categories_as_memory_runs_out(told: dict[str, Any], found: dict[str, int]) -> None:
    assert parts(window(WEIGHT, OLD, NEW, BARE, HIDDEN, owners=OWNED, **told)) == {"parameters": 10, **found}


def test_categories_without_a_history() -> None:
    """Later in a run the allocator keeps none: what has a stack is older."""
    of = window((1, 10, -1, 0), (2, 20, -1, -1), (3, 40, -1, 0), owners=OWNED[:1])
    assert parts(of) == {"parameters": 10, "activations": 20, "unknown": 40}
    first = window((2, 20, -1, -1), (3, 40, -1, 0), step=2, began=None)
    assert parts(first) == {"activations": 60}


def test_what_is_older_than_the_first_event_is_of_no_step_that_began_later() -> None:
    assert parts(window((2, 20, -1, -1), (3, 40, 90, 0), (4, 1, 150, 0))) == {"unknown": 60, "activations": 1}
    assert parts(window((2, 20, -1, -1), (3, 40, 120, 0))) == {"activations": 60}, "it may be of this step"


def test_the_moment_counts_and_not_a_peak_before_it() -> None:
    of = window((3, 40, 150, 0))
    events = Events(
        actions=(0, 1, 0), addresses=(9, 9, 3), bytes=(90 * MIB, 90 * MIB, 40 * MIB), times=(110, 120, 150),
        stacks=(0, 0, 0),
    )  # fmt: skip
    found = usage(msgspec.structs.replace(of, events=events))
    assert found.peak_bytes == 40 * MIB and (found.step, found.phase) == (5, "forward")


# changes


def live(reserved: int = 0, device: str = "cuda:0", holders: tuple[Holder, ...] = (), **mib: int) -> MemoryUsage:
    named = {name.replace("_", " "): size * MIB for name, size in mib.items()}
    total = sum(named.values())
    return MemoryUsage(
        device=device, source="allocator", peak_bytes=total, step=5, phase="forward", holders=holders,
        parts=tuple(MemoryPart(category=name, bytes=size) for name, size in named.items()),  # type: ignore[arg-type]
        reserved_bytes=max(total, reserved * MIB),
    )  # fmt: skip


def told(asked: int = 100, **more: Any) -> OutOfMemory:
    return OutOfMemory(**{"asked_bytes": asked * MIB, "phase": "forward", "step": 5, **more})


def by_what(found: tuple[MemoryChange, ...]) -> dict[str, int]:
    return {one.lever or one.what: (one.gives_bytes or 0) // MIB for one in found}


def test_each_lever_for_memory_says_what_it_frees_and_takes() -> None:
    for lever in all_levers().values():
        assert bool(lever.frees) == bool(lever.takes)
        assert not lever.saves_memory or lever.frees, lever.name
        assert all(0 < share <= 1 for share in lever.frees.values())


def test_what_costs_least_comes_first() -> None:
    found = changes(live(activations=1000, parameters=100), told(), SEEN, MACHINE)
    enough = [one.lever for one in found if one.enough]
    assert [all_levers()[name].risk for name in enough if name] == ["exact", "exact", "numeric", "semantic"]
    assert enough[0] == "checkpoint-blocks", "before the offload, which costs more"
    assert by_what(found) == {
        "checkpoint-blocks": 800, "activation-offload": 900, "bf16-autocast": 550, "accumulate": 550
    }  # fmt: skip
    assert next(one.settings for one in found if one.lever == "accumulate") == {"parts": 2}, "which frees a half"
    assert all(one.costs and one.code and one.bound == "at most" for one in found)
    chosen, together = few(found, lacking(told()))
    assert len(chosen) == 3 and not together


def test_levers_that_can_not_be_used_are_left_out() -> None:
    bare = msgspec.structs.replace(SEEN, roots=(msgspec.structs.replace(ROOT, blocks=0, autocast="bfloat16"),))
    found = by_what(changes(live(activations=1000), told(), bare, MACHINE))
    assert found == {"activation-offload": 900, "accumulate": 550}
    on_cpu = changes(live(activations=1000, device="cpu"), told(), FACTS, MACHINE)
    assert by_what(on_cpu) == {"batches of 1/2 of the rows": 550}, "no loader that a lever could divide"


def test_nothing_alone_but_several_together() -> None:
    found = changes(live(activations=100, optimizer_state=300), told(400, phase="optimizer"), None)
    assert not any(one.enough for one in found)
    chosen, together = few(found, lacking(told(400)))
    assert together and sum(one.gives_bytes or 0 for one in chosen) >= 400 * MIB
    few_bytes = changes(live(parameters=1000, optimizer_state=100), told(4000, phase="optimizer"), None)
    chosen, together = few(few_bytes, lacking(told(4000)))
    assert chosen and not together


def test_what_is_free_does_not_lack() -> None:
    assert lacking(told(100, free_bytes=60 * MIB)) == 40 * MIB
    assert lacking(told(100, total_bytes=GIB, resident_bytes=GIB - 30 * MIB)) == 70 * MIB
    assert lacking(OutOfMemory()) == 1


def test_fragments_are_enough_where_they_sum_up_to_what_was_asked_for() -> None:
    found = changes(live(parameters=500, reserved=700), told(150), SEEN, MACHINE)
    assert found[0].lever == "allocator" and found[0].gives_bytes == 200 * MIB and found[0].enough
    assert "expandable_segments" in found[0].code
    less = changes(live(parameters=500, reserved=600), told(150), SEEN, MACHINE)
    assert not any(one.enough for one in less if one.lever == "allocator")


def test_what_is_wrong_comes_before_levers() -> None:
    leak = changes(live(outputs=10, unknown=500, activations=400), told(), SEEN, MACHINE)
    assert leak[0].what.startswith("keep values, not graphs") and leak[0].gives_bytes == 510 * MIB
    evaluates = changes(live(activations=900), told(grad=True, training=False), SEEN, MACHINE)
    assert evaluates[0].code == "with torch.no_grad():" and evaluates[0].gives_bytes == 900 * MIB
    copies = (Holder(name="best", bytes=300 * MIB, blocks=9, weights=True),)
    kept = changes(live(held=300, activations=400, holders=copies), told(), SEEN, MACHINE)
    assert "best" in kept[0].what
    idle = changes(live(gradients=200, activations=100), told(), SEEN, MACHINE)
    assert "zero_grad" in idle[0].code and idle[0].gives_bytes == 200 * MIB
    update = changes(live(gradients=200, parameters=200), told(phase="optimizer"), SEEN, MACHINE)
    assert "post_accumulate" in update[0].code


def test_a_request_that_is_larger_than_all_takes_smaller_batches() -> None:
    found = changes(live(activations=100), told(4000, total_bytes=GIB, resident_bytes=GIB - 500 * MIB), None)
    assert not [one for one in found if one.lever == "accumulate" and one.enough]
    cpu = changes(live(activations=100, device="cpu"), told(4000, free_bytes=500 * MIB), FACTS, MACHINE)
    assert cpu[0].what == "batches of 1/8 of the rows" and cpu[0].enough


# from a run folder


def run_of(folder: Path, of: MemoryWindow | None, steps: int = 5, facts: Facts = SEEN, **run: Any) -> RunFolder:
    folder_of(folder, ([STEP] * steps, facts), **run)
    if of is not None:
        write_record(folder / "rank-0" / "memory-oom.json", of)
    return RunFolder(folder)


def test_a_run_that_ran_out(tmp_path: Path) -> None:
    of = window(WEIGHT, NEW, owners=OWNED[:1], total_bytes=8 * GIB, free_bytes=7 * MIB)
    of = msgspec.structs.replace(of, segments=(Segment(address=1, bytes=50 * MIB, allocated=50 * MIB),), used_bytes=GIB)
    run = run_of(tmp_path / "r", of)
    gpu = GpuSample(index=0, uuid="GPU-1", memory_bytes=3 * GIB)
    later = msgspec.structs.replace(gpu, memory_bytes=70 * GIB)
    lines = [TelemetrySample(time=at, gpus=(one,)) for at, one in ((0.0, gpu), (1.0, later))]
    run.file(TelemetrySample).write_bytes(b"".join(to_json(one) + b"\n" for one in lines))
    found = ran_out(run, FAILED)
    assert found is not None and not found.went_on and found.where == LINE and found.distinct
    assert (found.asked_bytes, found.lacks_bytes) == (GIB, GIB - 7 * MIB)
    assert found.before_bytes == 3 * GIB and found.outside_bytes == GIB - 50 * MIB
    assert found.usage is not None and found.usage.part("activations") == 40 * MIB
    assert found.changes and every_change(run, MACHINE)[1] == GIB - 7 * MIB


def test_one_that_went_on(tmp_path: Path) -> None:
    of = window(WEIGHT, NEW, owners=OWNED[:1])
    well = ran_out(run_of(tmp_path / "a", of), RUN)
    later = ran_out(run_of(tmp_path / "b", of, steps=9), FAILED)
    assert well is not None and later is not None and well.went_on and later.went_on


def test_a_run_that_did_not(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", None)
    assert ran_out(run, FAILED) is None and ran_out(run, RUN) is None and every_change(run, MACHINE) == ((), 0)


def test_host_memory_in_no_variable(tmp_path: Path) -> None:
    of = MemoryWindow(
        when="oom", device="cpu", source="operations", owners=OWNED[:1],
        blocks=Blocks(addresses=(1,), bytes=(10 * MIB,), stacks=(-1,)),
        ran_out=told(400, resident_bytes=110 * MIB),
    )  # fmt: skip
    found = ran_out(run_of(tmp_path / "r", of, facts=FACTS), msgspec.structs.replace(FAILED, memory_limit_bytes=GIB))
    assert found is not None and found.usage is not None
    assert found.usage.part("unknown") == 100 * MIB and found.usage.part("parameters") == 10 * MIB
    assert found.total_bytes == GIB and found.changes[0].what.startswith("batches of 1/")


@pytest.mark.parametrize(
    ("run", "rss", "certain"),
    [
        ({"signal": signal.SIGKILL, "exit_code": None, "oom_kills": 1}, 100 * MIB, True),
        ({"exit_code": 1, "oom_kills": 2}, 100 * MIB, True),
        ({"signal": signal.SIGKILL, "exit_code": None, "memory_limit_bytes": GIB}, 900 * MIB, False),
        ({"exit_code": 137, "memory_limit_bytes": GIB}, 900 * MIB, False),
        ({"signal": signal.SIGKILL, "exit_code": None, "memory_limit_bytes": GIB}, 500 * MIB, None),
        ({"exit_code": 1, "memory_limit_bytes": GIB, "oom_kills": 0}, 900 * MIB, None),
        ({"signal": signal.SIGTERM, "exit_code": None, "oom_kills": 1}, 100 * MIB, None),
    ],
)
def test_the_kernel_killed_it(run: dict[str, Any], rss: int, certain: bool | None, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r", None)
    sample = TelemetrySample(time=0.0, rss_bytes=rss)
    folder.file(TelemetrySample).write_bytes(to_json(sample) + b"\n")
    found = ran_out(folder, Run(**{**msgspec.structs.asdict(FAILED), **run}))
    assert (None if found is None else found.certain) == certain
    if found is not None:
        assert found.killed and found.resident_bytes == rss and found.step == 5
        assert "4 loader workers" in found.changes[0].what and found.changes[0].gives_bytes is None
