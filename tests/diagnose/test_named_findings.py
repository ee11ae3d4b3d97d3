"""Causes by name, on records: where each is told, and that it is not told elsewhere."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from hotlap.diagnose.diagnose import next_of
from hotlap.diagnose.findings import _modules, evaluation, findings_of
from hotlap.diagnose.findings._base import MODEL, CpuUse, Jump, LongSteps, Measured
from hotlap.diagnose.findings.debug_switches import ANOMALY, CUDNN, CUDNN_OFF, ID
from hotlap.diagnose.findings.steps_grow import PILE_UP, with_hooks
from hotlap.diagnose.steps import growth
from hotlap.records.diagnosis import Finding, Place, bound_of, in_order
from hotlap.records.run import (
    BesidesFacts,
    CompiledFunction,
    ExchangeFacts,
    Facts,
    HostFacts,
    Hung,
    LoaderFacts,
    MemoryFacts,
    OptimizerFacts,
    Phases,
    RootFacts,
    UnusedFacts,
    WastedFacts,
)
from made_runs import diagnosis_of

LOADER = LoaderFacts(
    dataset="Rows", iterable=False, workers=0, batches=40, batch_size=64, training=True, default_collate=True,
    rows=6400, epoch_batches=100, iterators=1, loop=("train.py", 30, "main"),
)  # fmt: skip
ROOT = RootFacts(name="Net", parameters=9, modules=3)
ADAM = OptimizerFacts(name="Adam", builtin=True, tensors=2)
COMPILED_UPDATE = (CompiledFunction(file="/torch/optim/adam.py", line=1, function="step", graphs=1),)
HOST = HostFacts(steps=20)
PHASES = Phases(data=4.0, forward=2.0, backward=2.0, optimizer=1.0, other=1.0)
GIB = 2.0**30


def measured(
    loader: dict[str, Any] | None = None, root: dict[str, Any] | None = None, optimizer: dict[str, Any] | None = None,
    host: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **changes: Any,
) -> Measured:  # fmt: skip
    facts = Facts(
        pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0", mode="train",
        loaders=(msgspec.structs.replace(LOADER, **(loader or {})),),
        roots=(msgspec.structs.replace(ROOT, **(root or {})),),
        optimizers=(msgspec.structs.replace(ADAM, **(optimizer or {})),),
        host=msgspec.structs.replace(HOST, **(host or {})), peak_rss_bytes=int(GIB),
    )  # fmt: skip
    facts = msgspec.structs.replace(facts, **(more or {}))
    return replace(Measured(10.0, PHASES, None, None, facts, memory_bytes=16 * GIB), **changes)


EXPERTS = Path(__file__).parent.parent / "agent" / "scripts" / "experts.py"


def line_of(file: Path, text: str) -> int:
    return next(at for at, line in enumerate(file.read_text().splitlines(), start=1) if text in line)


def named(found: Measured) -> list[str]:
    return [one.id for one in in_order(findings_of(found)) if one.named]


EXCHANGE = ExchangeFacts(compute_ms=1.0, exchange_ms=1.0, hidden_ms=0.0, backwards=1.0)
MICRO = {"root": {"exchange": EXCHANGE}, "more": {"world": 2, "backwards": 80, "optimizer_steps": 10}}
DECODES = {"root": {"training": False, "shapes": 15, "grows": 0.9}, "more": {"mode": "inference"}}
LOOP = {
    "root": {"expert_loop": (str(EXPERTS), line_of(EXPERTS, "torch.where"), "Layer.forward")},
    "gpu_phases": PHASES, "backlog_ms": 0.0,
}  # fmt: skip
LONG = LongSteps(frozenset({20, 40, 60}), usual_ms=5.0, long_ms=105.0, share=0.5, every=20)
GROUPS = {
    "optimizer": {
        "groups": 246, "settings": 43, "tensors": 246, "differ": ("lr", "weight_decay"), "devices": ("cuda:0",),
    },
    "gpu_phases": PHASES, "gpu_paced": PHASES, "phases": PHASES, "backlog_ms": 0.0,
}  # fmt: skip
ACCUMULATES = {
    "micro": (32.0, 1.0), "root": {"optimized": 9}, "phases": Phases(forward=4.0, backward=5.0, optimizer=1.0),
    "more": {"backwards": 320, "forwards": 330, "optimizer_steps": 10},
}  # fmt: skip
PRIVATE = Path(__file__).parents[2] / "benchmarks" / "unseen" / "private_charges.py"
EACH = {
    "rows": 32.0, "phases": Phases(forward=4.0, backward=5.0, optimizer=1.0), "root": {"modules": 9},
    "more": {
        "backwards": 320, "forwards": 320, "forwards_each": 1.0, "optimizer_steps": 10, "argv": (str(PRIVATE),),
    },
}  # fmt: skip
OFTEN = MemoryFacts(peak_bytes=1, peak_reserved_bytes=1, total_bytes=9, late_mallocs=90, since=10, step=60)
MALLOCS = {
    "more": {"memory": OFTEN},
    "host": {"system_ms": 3.5, "faults": 500.0}, "gpu_phases": PHASES, "backlog_ms": 0.0,
}  # fmt: skip
SEARCHES = {
    "more": {"memory": OFTEN, "cudnn_benchmark": True},
    "root": {"conv": 4, "shapes": 12}, "gpu_phases": PHASES, "gpu_paced": PHASES, "backlog_ms": 0.0,
}  # fmt: skip
UPDATES = {
    "optimizer": {"devices": ("cpu",), "dtypes": ("float32",), "made": ("train.py", 7, "main")},
    "phases": Phases(forward=3.0, backward=3.0, optimizer=4.0),
}  # fmt: skip
STEPPED = ("train.py", 9, "step")
COMPILED = CompiledFunction(file="train.py", function="step")
ACTS = UnusedFacts(
    name="Net", place=("train.py", 9, "act"), steps=10, calls=40, took_ms=15.0, unused_calls=40, unused_took_ms=15.0
)
LEARNS = UnusedFacts(name="Net", place=("train.py", 12, "step"), steps=10, calls=10, took_ms=5.0)
CAUSES: list[tuple[str, dict[str, Any]]] = [
    ("iterator-each-step", {"loader": {"iterators": 40}}),
    ("iterator-each-step", {"loader": {"iterators": 40, "workers": 2}}),
    ("rows-one-by-one", {"loader": {"dataset": "TensorDataset"}}),
    ("rows-one-by-one", {"loader": {"views": True}}),
    ("worker-threads", {"loader": {"workers": 4, "worker_threads": 4}, "cpu": CpuUse(usable=8, cores=8)}),
    ("cpu-crowded", {"host": {"waited_ms": 4.0, "threads_waited_ms": 5.0}}),
    ("wasted-backward", {"more": {"wasted": WastedFacts(place=("train.py", 9, "step"), share=0.5, part=0.5)}}),
    ("unused-forwards", {"more": {"unused": (ACTS, LEARNS)}}),
    ("several-backwards", {"more": {"retained": 1.0, "backwards": 40, "optimizer_steps": 10}}),
    ("garbage-collection", {"host": {"gc_ms": 3.0, "collections": 20}}),
    ("debug-switches", {"more": {"switches": ("detect_anomaly",)}}),
    ("debug-switches", {"more": {"switches": ("profiler",)}}),
    ("debug-switches", {"more": {"switches": ("PYTORCH_NO_CUDA_MEMORY_CACHING",), "device": "cuda"}}),
    ("python-modes", {"more": {"dispatch_modes": ("DebugMode",)}, "root": {"modules": 60}}),
    ("optimizer-groups", GROUPS),
    (
        "optimizer-groups",
        {**GROUPS, "gpu_phases": None, "optimizer": {**GROUPS["optimizer"], "fused": True, "devices": ("cpu",)}},
    ),
    ("micro-batches", ACCUMULATES),
    ("gradients-of-each", EACH),
    ("micro-batches", {**ACCUMULATES, "micro": (32.0, 64.0), "gpu_phases": PHASES, "gpu_paced": PHASES}),
    ("padding", {"root": {"padding": 0.6, "padding_of_all": 0.1}}),
    ("double-precision", {"root": {"dtypes": ("float64",), "double": 1.0}}),
    ("page-faults", {"host": {"faults": 900.0, "own_faults": 900.0, "fault_us": 3.0, "system_ms": 2.7}}),
    ("optimizer", UPDATES),
    ("optimizer", {**UPDATES, "optimizer": {**UPDATES["optimizer"], "name": "SGD", "momentum": True}}),
    ("idle-rows", {**UPDATES, "optimizer": {**UPDATES["optimizer"], "idle": 0.97, "matrix": (60_000, 64)}}),
    ("idle-rows", {"optimizer": {"idle": 0.97, "matrix": (60_000, 64)}}),
    ("counters-on-device", {"optimizer": {"counters": 90}}),
    ("rate-on-device", {"optimizer": {"on_device": ("lr",), "tensors": 90}}),
    ("recomputing", {"more": {"recomputed": 8}}),
    ("steps-grow", {"growth": (4.0, 16.0, 50), "root": {"hooks": (3, 120), "alike": (1, 60)}}),
    ("steps-grow", {"growth": (4.0, 16.0, 50)}),
    ("late-mallocs", MALLOCS),
    ("kernel-search", SEARCHES),
    ("steps-jump", {"jump": Jump(50, 4.0, 16.0, "backward", 12.0, ("trained", 2, 14))}),
    ("exchange-each-micro-step", MICRO),
    ("evaluation", {"evaluating": 0.5}),
    ("long-steps", {"long": LONG}),
    ("loader-hangs", {"more": {"hung": Hung(waited_s=40.0, worker=1, worker_pid=9, alive=True)}, "run_ms": 2000.0}),
    ("workers-restart", {"loader": {"workers": 4, "starts": 3, "restarting_ms": 900.0}, "run_ms": 2000.0}),
    ("evaluation-each-step", {"evaluates": True, "phases": Phases(forward=5.0, other=5.0)}),
    ("unused-gradients", {"root": {"parameters": 90, "optimized": 9, "with_gradients": 90}}),
    ("unused-gradients", {"root": {"parameters": 90, "optimized": 60, "with_gradients": 90, "unused": 0.8}}),
    ("expert-loop", LOOP),
    ("whole-sequence", {**DECODES, "growth": (4.0, 16.0, 50)}),
]


@pytest.mark.parametrize(("tensors", "bound"), [(12, "bandwidth"), (90, "launch")])
def test_an_update_is_bound_by_memory_traffic_but_for_small_tensors(tensors: int, bound: str) -> None:
    """NCF's Adam took 56% of the step, 0.7 ms a tensor, and the step was called compute-bound."""
    found = findings_of(measured(**{**UPDATES, "optimizer": {**UPDATES["optimizer"], "tensors": tensors}}))
    assert [one.bound for one in found if one.id == "optimizer"] == [bound]


@pytest.mark.parametrize(
    ("loader", "collections", "told"),
    [
        ({"workers": 2, "batch_tensors": 576}, 60, True),
        ({"workers": 2, "batch_tensors": 6}, 60, False),
        ({"workers": 2, "batch_tensors": 576}, 6, False),  # the oldest generation's
        ({"workers": 2, "batch_tensors": 576}, 600, False),  # of more objects than these
        ({"workers": 0, "batch_tensors": 576}, 60, False),
    ],
)
def test_collections_that_come_of_a_batch_of_many_tensors(loader: dict[str, Any], collections: int, told: bool) -> None:
    """A batch of 576 tensors made 6 collections a step, 7 ms; the same stacked made none."""
    found = findings_of(measured(host={"gc_ms": 3.0, "collections": collections}, loader=loader))
    (text,) = (one.instead for one in found if one.id == "garbage-collection")
    assert ("each batch has 576" in text) is told and "gc.freeze()" in text


@pytest.mark.parametrize(("trained", "told"), [((False,), False), ((True,), True), ((True, False), True), ((), True)])
def test_a_teacher_is_no_evaluation_in_each_step(trained: tuple[bool, ...], told: bool) -> None:
    besides = tuple(BesidesFacts(name="Net", trained=one, of=10, steps=10, calls=10, took_ms=2.0) for one in trained)
    found = findings_of(measured(evaluates=True, phases=Phases(forward=5.0, other=5.0), more={"besides": besides}))
    assert ("evaluation-each-step" in [one.id for one in found]) is told


def test_what_hooks_compute_that_pile_up_is_told_once() -> None:
    hook = Place(file="t.py", function="hook")
    again = Finding(id="computed-again", bound="compute", share=0.5, named=True, where=hook)
    other = msgspec.structs.replace(again, where=Place(file="t.py", function="step"))
    piled = RootFacts(name="Net", parameters=9, modules=3, hooks=(3, 90), alike=(1, 30), hook=("t.py", 7, "hook"))
    facts = msgspec.structs.replace(measured().facts, roots=(piled,))
    grows = Finding(id="steps-grow", bound="unknown", share=0.3, named=True, title=PILE_UP)
    told = with_hooks(diagnosis_of(bound="compute", findings=(again, other, grows)), facts).findings
    assert set(told) == {other, grows}
    alone = diagnosis_of(bound="compute", findings=(again, other))
    assert with_hooks(alone, facts) == alone


@pytest.mark.parametrize(
    ("loader", "collections", "told"),
    [
        ({"dataset": "TensorDataset", "batch_size": 4096, "batch_tensors": 2}, 460, False),
        ({"dataset": "TensorDataset", "batch_size": 8, "batch_tensors": 2}, 460, True),  # of more objects than these
        ({"batch_size": 4096, "batch_tensors": 2}, 460, True),  # not known to be rows of a tensor
    ],
)
def test_collections_that_come_of_rows_one_by_one_are_in_their_time(
    loader: dict[str, Any], collections: int, told: bool
) -> None:
    found = findings_of(measured(host={"gc_ms": 3.0, "collections": collections}, loader=loader))
    assert ("garbage-collection" in [one.id for one in found]) is told


def test_long_steps_that_are_collections_are_told_as_these() -> None:
    """2 of 33 steps took 819 ms, and the collector 60.6 ms a step."""
    for gc_ms, told in ((4.5, ["garbage-collection"]), (2.0, ["garbage-collection", "long-steps"])):
        found = findings_of(measured(long=LONG, host={"gc_ms": gc_ms, "collections": 20}))
        assert sorted(one.id for one in found if one.named) == told


def test_a_loader_that_hangs_comes_first_with_its_worker(tmp_path: Path) -> None:
    hung = Hung(waited_s=40.0, worker=1, worker_pid=9, alive=True, file="train.py", line=30, function="main")
    first, *_ = in_order(findings_of(measured(more={"hung": hung}, run_ms=10_000.0)))
    assert (first.id, first.share, first.title) == ("loader-hangs", 0.8, "a batch never came: worker 1 hangs")
    assert first.where is not None and first.where.line == 30 and "py-spy dump --pid 9" in first.instead
    dead = measured(more={"hung": Hung(waited_s=40.0, worker=1, worker_pid=9, alive=False)}, run_ms=10_000.0)
    assert "worker 1 is dead" in in_order(findings_of(dead))[0].title


def test_an_update_in_many_passes_says_where_each_optimizer_is_made() -> None:
    """Adam took 34% and 21% of a step on the CPU, of which fused=True won 28% and 12%, and was told as computing."""
    adam = msgspec.structs.replace(ADAM, **UPDATES["optimizer"])
    two = (adam, msgspec.structs.replace(adam, made=("train.py", 8, "main")))
    found = in_order(findings_of(measured(**UPDATES | {"more": {"optimizers": two}})))
    assert (found[0].id, found[0].share, found[0].levers) == ("optimizer", 0.4, ("fused-optimizer",))
    assert found[0].where == Place(file="train.py", line=7, function="main") and "of line 8" in found[0].evidence
    assert "4 tensors" in found[0].evidence and "fused-optimizer" in next_of(found) and bound_of(found) == "compute"
    mixed = (adam, msgspec.structs.replace(adam, name="RMSprop"))
    assert named(measured(**UPDATES | {"more": {"optimizers": mixed}})) == [], "whose time it is is not known"


def test_padding_is_made_less_by_what_it_comes_from() -> None:
    """Rows of one length each are as many as the longest of a batch asks for; those of all rows are for nothing."""
    by_length, to_longest = (
        next(one.instead for one in findings_of(measured(root={"padding": 0.6, "padding_of_all": of_all}))
             if one.id == "padding")
        for of_all in (0.1, 0.5)
    )  # fmt: skip
    assert "pad to the longest" in to_longest and "pad to the longest" not in by_length
    assert "group_by_length" in by_length


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("counts = [0] * 9\nrow += [PAD] * (LONGEST - len(row))", 2),
        ("x = torch.full((9,), 1.0)\ny = np.full((rows, LONGEST), config.pad_id)", 2),
        ("z = pad_sequence(rows)\nrow += [0] * (9 - len(row))", 1),
        ("model = nn.Embedding(9, 9, padding_idx=PAD)", None),
    ],
)
def test_padding_is_where_rows_are_filled_up(text: str, line: int | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    found = findings_of(measured(root={"padding": 0.6}, more={"argv": (str(file),)}))
    (where,) = (one.where for one in found if one.id == "padding")
    assert (where and where.line) == line


@pytest.mark.parametrize(
    ("unpack", "of_all", "line"),
    [
        ("pad_packed_sequence(y, batch_first=True, total_length=100)", 0.9, 2),
        ("pad_packed_sequence(y, batch_first=True)", 0.9, None),  # to the longest row of the batch
        ("pad_packed_sequence(y, total_length=100)", 0.3, None),
        ("y", 0.9, None),
    ],
)
def test_rows_that_are_packed_and_padded_again(unpack: str, of_all: float, line: int | None, tmp_path: Path) -> None:
    """Packing alone says that padding is left out; a length that no row has brings it back."""
    file = tmp_path / "train.py"
    file.write_text(f"x = pack_padded_sequence(x, lengths)\nz = {unpack}")
    of = {"root": {"padding": 0.93, "padding_of_all": of_all}, "more": {"argv": (str(file),)}}
    found = [one for one in findings_of(measured(**of)) if one.id == "padding"]
    assert [one.where and one.where.line for one in found] == ([] if line is None else [line])
    assert all(one.named and one.share == 0 and one.cost_ms is None for one in found), "what it costs is not known"


def test_a_frozen_teachers_forwards_are_no_evaluation() -> None:
    """Also of one that an optimizer has held, as where it was trained before."""
    of = {"evaluates": True, "phases": Phases(forward=5.0, other=5.0)}
    for root, named in (({}, True), ({"frozen": True}, False), ({"optimized": 0}, False)):
        found = findings_of(measured(root=root, **of))
        assert ("evaluation-each-step" in {one.id for one in found}) is named
        assert ("evaluate every few steps" in " ".join(one.instead for one in found if one.id == "compute")) is named


@pytest.mark.parametrize(
    ("embeds", "advice"), [(True, "`nn.Embedding(..., sparse=True)`"), (None, "`nn.Embedding"), (False, "`F.embed")]
)
def test_idle_rows_of_a_table_that_is_no_module_are_made_sparse_in_its_call(embeds: bool | None, advice: str) -> None:
    """The advice was of nn.Embedding where a model had none, and at the model's forward."""
    of = {"idle": 0.97, "matrix": (60_000, 64), "made": ("train.py", 26, "main")}
    root = {"embeds": embeds, "file": "net.py", "line": 3, "function": "Net.forward"}
    (found,) = (one for one in findings_of(measured(optimizer=of, root=root)) if one.id == "idle-rows")
    assert found.instead.startswith(advice) and ("a table" in found.title) is (embeds is False)
    assert found.where is not None and (found.where.file, found.where.line) == ("train.py", 26)


def test_gradients_that_nobody_uses_are_of_the_call() -> None:
    of = {
        "parameters": 90,
        "optimized": 9,
        "with_gradients": 90,
        "file": "net.py",
        "line": 3,
        "function": "Net.forward",
    }
    for called, line in ((("train.py", 40, "step"), 40), (None, 3)):
        found = findings_of(measured(root=of | {"called": called}))
        (where,) = (one.where for one in found if one.id == "unused-gradients")
        assert where is not None and where.line == line


@pytest.mark.parametrize("root", [{"padding": 0.6}, {"dtypes": ("float64",), "double": 1.0}])
def test_less_arithmetic_wins_nothing_where_the_device_waits_for_launches(root: dict[str, Any]) -> None:
    """Seen on open_clip: padding was 91% of a step in which a kernel ran 27% of the time."""
    paced = msgspec.structs.replace(PHASES, **{name: 0.9 * (getattr(PHASES, name) or 0.0) for name in MODEL})
    whole, waiting = (
        next(one for one in findings_of(measured(root=root, gpu_phases=PHASES, gpu_paced=on)) if one.named)
        for on in (Phases(), paced)
    )
    assert waiting.share == pytest.approx(0.1 * whole.share) and waiting.cost_ms == pytest.approx(0.1 * whole.cost_ms)


@pytest.mark.parametrize(("workers", "threads", "told"), [(4, 4, True), (4, 2, False), (8, 1, False), (0, 4, False)])
def test_threads_of_workers_are_too_many_where_all_together_are_more_than_cores(
    workers: int, threads: int, told: bool
) -> None:
    loader = {"workers": workers, "worker_threads": threads}
    found = named(measured(loader=loader, cpu=CpuUse(usable=8, cores=8)))
    assert ("worker-threads" in found) is told


@pytest.mark.parametrize(("searches", "unused", "told"), [(True, 0, True), (True, 400, False), (False, 0, False)])
def test_a_search_for_unused_parameters_that_finds_none(searches: bool, unused: int, told: bool) -> None:
    exchange = msgspec.structs.replace(EXCHANGE, searches=searches, unused=unused)
    found = findings_of(measured(root={"exchange": exchange}, more={"world": 2}))
    assert ("unused-search" in [one.id for one in found]) is told


@pytest.mark.parametrize(("name", "changes"), CAUSES)
def test_a_cause_is_named_with_what_it_costs_and_what_to_write(name: str, changes: dict[str, Any]) -> None:
    found = measured(**changes)
    assert named(found) == [name]
    (one,) = [one for one in findings_of(found) if one.named]
    assert all((one.title, one.evidence, one.why, one.instead)) and 0 <= one.share <= 1
    assert one.cost_ms is None or 0 < one.cost_ms <= found.step_ms


def test_each_of_them_is_tested_here() -> None:
    sources = {name: inspect.getsource(module) for name, module in _modules().items()}
    known = {name.replace("_", "-") for name, text in sources.items() if "named=" in text}
    assert known == {one for one, _ in CAUSES}


def test_nothing_is_named_of_a_loop_without_habits() -> None:
    assert named(measured()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"loader": {"iterators": 5}},  # epochs
        {"loader": {"iterators": 40, "epoch_batches": 1, "batches": 40}},  # epochs of one batch
        {"loader": {"iterators": 40}, "phases": Phases(data=0.1, forward=9.9)},
        {"loader": {"dataset": "TensorDataset", "workers": 2}},
        {"loader": {"dataset": "TensorDataset", "default_collate": False}},
        {"loader": {"dataset": "TensorDataset", "batch_size": 4}},
        {"host": {"gc_ms": 0.2, "collections": 1}},
        {"more": {"switches": ("something else",)}},
        {"more": {"function_modes": ("Calls",)}, "root": {"modules": 60}},
        {"more": {"dispatch_modes": ("DebugMode",)}, "root": {"modules": 3}},  # of long operations
        {
            "more": {"dispatch_modes": ("DebugMode",)},
            "root": {"modules": 60},
            "gpu_phases": Phases(forward=9.0),
            "backlog_ms": 20.0,
        },
        {**GROUPS, "optimizer": {**GROUPS["optimizer"], "settings": 200}},
        {**GROUPS, "optimizer": {**GROUPS["optimizer"], "groups": 8, "settings": 2}},
        {**GROUPS, "optimizer": {**GROUPS["optimizer"], "foreach": False}},
        {**GROUPS, "optimizer": {**GROUPS["optimizer"], "builtin": False}},
        {**GROUPS, "optimizer": {**GROUPS["optimizer"], "devices": ("cpu",)}},  # where each tensor is updated alone
        {**GROUPS, "gpu_paced": Phases()},  # the device has more to do than to wait
        {**ACCUMULATES, "micro": (3.0, 1.0)},
        {**ACCUMULATES, "micro": (32.0, 64.0)},  # enough for a core
        {**ACCUMULATES, "micro": (32.0, 64.0), "gpu_phases": PHASES, "gpu_paced": Phases()},
        {**ACCUMULATES, "memory_bytes": 2 * GIB},
        {**ACCUMULATES, "root": {"optimized": 9, "shapes": 5}},  # which do not stack
        {**ACCUMULATES, "more": {**ACCUMULATES["more"], "forwards": 640}},  # two views, an episode
        {**ACCUMULATES, "more": {**ACCUMULATES["more"], "forwards_each": 0.2}},  # a loss for each layer of one forward
        {**ACCUMULATES, "more": {**ACCUMULATES["more"], "backwards": 20}},  # a cycle of several updates
        {**ACCUMULATES, "more": {**ACCUMULATES["more"], "optimizers": (ADAM, ADAM)}},
        {**ACCUMULATES, "more": {**ACCUMULATES["more"], "roots": (msgspec.structs.replace(ROOT, optimized=9),) * 2}},
        {**UPDATES, "phases": Phases(forward=5.0, backward=4.5, optimizer=0.5)},
        {**UPDATES, "levers": ("fused-optimizer",)},
        {**UPDATES, "more": {"device": "cuda"}, "gpu_phases": PHASES, "backlog_ms": 9.0},
        {**UPDATES, "more": {"compiled": (COMPILED,)}, "optimizer": UPDATES["optimizer"] | {"stepped": STEPPED}},
        {**UPDATES, "more": {"compiled": (msgspec.structs.replace(COMPILED, file="/torch/optim/adam.py"),)}},
        *(
            {**UPDATES, "optimizer": UPDATES["optimizer"] | none}
            for none in (
                {"fused": True},
                {"sparse": True},
                {"devices": ("cuda",)},
                {"builtin": False},
                {"name": "SGD"},
                {"name": "RMSprop"},
            )
        ),
        {"root": {"dtypes": ("float32", "float64"), "double": 1e-6}},
        {"root": {"padding": 0.2}},
        {"more": {"retained": 1.0, "backwards": 10, "optimizer_steps": 10}},
        {"more": {"wasted": WastedFacts(place=("train.py", 9, "step"), share=0.05, part=0.5)}},
        {"more": {"unused": (LEARNS,)}},
        {"more": {"unused": (msgspec.structs.replace(ACTS, took_ms=5.0, unused_took_ms=4.0), LEARNS)}},
        {"more": {"unused": (msgspec.structs.replace(ACTS, unused_calls=2),)}},  # too few
        {"more": {"unused": (ACTS,), "device": "cuda"}},  # what it takes is not known
        {"more": {"retained": 0.2, "backwards": 40, "optimizer_steps": 10}},
        {"optimizer": {"idle": 0.3, "matrix": (60_000, 64)}},
        {"optimizer": {"counters": 1}},
        {"optimizer": {"on_device": ("lr",), "tensors": 90, "fused": True}},  # it reads it on the device
        {"optimizer": {"on_device": ("lr",), "tensors": 90, "capturable": True}},
        {"optimizer": {"on_device": ("lr",), "tensors": 90}, "more": {"compiled": COMPILED_UPDATE}},
        {"optimizer": {"on_device": ("lr",), "tensors": 90, "name": "SGD"}},  # it reads it once
        {"optimizer": {"on_device": ("lr",), "tensors": 90, "builtin": False}},
        {"optimizer": {"on_device": ("lr",), "tensors": 2}},
        {"more": {"recomputed": 8, "peak_rss_bytes": int(12 * GIB)}},  # memory is short
        {"more": {"recomputed": 8}, "memory_bytes": None},
        {"jump": Jump(50, 4.0, 16.0, "backward", 12.0)},
        {"jump": Jump(50, 4.0, 16.0, "backward", 12.0, ("backwards", 1, 2), (32, 128))},
        {**MALLOCS, "host": {"system_ms": 3.5, "faults": 3000.0}},  # pages that are mapped
        {**MALLOCS, "host": {"system_ms": 0.5}},
        {**MALLOCS, "phases": Phases(forward=10.0), "gpu_phases": Phases(forward=10.0), "backlog_ms": 20.0},
        {**MALLOCS, "more": {"memory": msgspec.structs.replace(OFTEN, late_mallocs=20)}},
        {"root": {"hooks": (3, 120)}},  # they cost nothing yet
        {**MICRO, "more": {"world": 2, "backwards": 10, "optimizer_steps": 10}},
        {**MICRO, "root": {"exchange": msgspec.structs.replace(EXCHANGE, backwards=8.0)}},  # under no_sync
        {**MICRO, "more": {"world": 2, "backwards": 30, "optimizer_steps": 20}},  # a GAN
        {**MICRO, "more": {"world": 1, "backwards": 80, "optimizer_steps": 10}},
        {**LOOP, "backlog_ms": 20.0},
        {**LOOP, "gpu_phases": None},
        {**LOOP, "root": {"expert_loop": (str(EXPERTS), 14, "Layer.__init__")}},  # a function without such a loop
        {**LOOP, "root": {"expert_loop": ("gone.py", 23, "Layer.forward")}},
        {**DECODES, "more": {"mode": "train"}},  # text that is sampled beside a training
        {**DECODES, "root": {"shapes": 15, "grows": 0.3}},  # texts of all lengths
        {**DECODES, "root": {"shapes": 2, "grows": 1.0}},
        {"evaluates": True},  # too short to matter
        {"evaluates": True, "phases": Phases(forward=5.0, other=5.0), "root": {"optimized": 0}},  # a teacher
        {"root": {"parameters": 90, "optimized": 60, "with_gradients": 90}},
        {"root": {"parameters": 90, "optimized": 60, "with_gradients": 90, "unused": 0.3}},
        {"root": {"parameters": 90, "optimized": 86, "with_gradients": 90, "unused": 0.8}},
        {"root": {"parameters": 90, "with_gradients": 90}},  # whose optimizer is not known
        {"root": {"parameters": 90, "optimized": 0, "with_gradients": 90}, "more": {"optimizers": ()}},  # by hand
    ],
)
def test_what_is_not_so_is_not_named(changes: dict[str, Any]) -> None:
    assert named(measured(**changes)) == []


def test_a_cause_takes_the_place_of_what_says_less() -> None:
    found = [one.id for one in findings_of(measured(loader={"iterators": 40}))]
    assert "input" not in found and "iterator-each-step" in found
    assert "input" in [one.id for one in findings_of(measured())]
    collects = measured(host={"gc_ms": 3.0, "collections": 20}, phases=Phases(forward=6.0, other=4.0))
    assert "host-code" not in [one.id for one in findings_of(collects)]


def test_causes_come_first_where_they_take_a_tenth() -> None:
    where = Finding(id="compute", bound="compute", share=0.9)
    cause = Finding(id="cause", bound="compute", share=0.2, cost_ms=2.0, named=True)
    small = msgspec.structs.replace(cause, share=0.02)
    unknown = msgspec.structs.replace(cause, share=0.0, cost_ms=None)
    assert in_order([where, cause]) == [cause, where] and in_order([small, where]) == [where, small]
    assert in_order([where, unknown]) == [unknown, where] and in_order([unknown, cause, where])[0] == cause


def test_what_an_evaluation_gathers_is_found(tmp_path: Path) -> None:
    text = """\
def evaluate(model, batches):
    model.eval()
    found = None
    for x in batches:
        out = model(x)
        found = out if found is None else torch.cat([found, out])
    return found
"""
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "other.py").write_text(text.replace("torch.cat([found, out])", "found + out.sum()"))
    gradients = text.replace("model.eval()", "torch.set_grad_enabled(False)").replace("torch.cat([found, out])", "out")
    (tmp_path / "gradients.py").write_text(gradients)
    for script, line in (("train.py", 6), ("other.py", 2), ("gradients.py", 2)):
        found = evaluation.find(measured(evaluating=0.5, more={"argv": (str(tmp_path / script),)}))
        assert found is not None and found.where is not None and found.where.line == line
        assert found.instead.startswith("keep sums" if script == "train.py" else "evaluate less")
    assert evaluation.find(measured(evaluating=0.1)) is None


def test_the_next_step_answers_the_first_finding() -> None:
    cause = Finding(id="cause", bound="compute", share=0.5, where=Place(file="train.py", line=7), named=True)
    generic = Finding(id="compute", bound="compute", share=0.9, levers=("compile",))
    assert next_of([cause, generic]).startswith("make the change at train.py:7, run again")
    assert next_of([generic, cause]).startswith("hotlap tune")
    assert next_of([msgspec.structs.replace(cause, levers=("tf32",)), generic]).startswith("hotlap tune")
    copies = Finding(id="h2d", bound="h2d", share=0.45, where=Place(file="train.py", line=58), instead="pin them")
    assert next_of([copies, generic]).startswith("make the change at train.py:58, run again")
    nowhere = msgspec.structs.replace(copies, where=None)
    assert next_of([nowhere, generic]).startswith("do what the first finding says, run again")
    assert next_of([msgspec.structs.replace(copies, instead=""), generic]).startswith("hotlap tune")


def test_what_grows_is_looked_for_where_it_is_joined(tmp_path: Path) -> None:
    script = tmp_path / "memory.py"
    script.write_text("""
class Memory:
    def sample(self, n):
        some = torch.cat([self.a, self.b])
    def forward(self, x):
        x = torch.cat((self.token, x), 1)
    def push(self, obs):
        self.obs = torch.cat([self.obs, obs])
""")
    found = findings_of(measured(growth=(4.0, 16.0, 50), more={"argv": (str(script),)}))
    (one,) = [one for one in found if one.id == "steps-grow"]
    assert one.where == Place(file=str(script), line=8, function="push")
    assert "joining a growing tensor" in one.why and "buffer" in one.instead


def test_where_nothing_shows_what_grows_no_line_is_told_but_the_phase() -> None:
    """card_fraud: the model's forward was named, and it was a metric over all that came before."""
    grown = replace(measured(growth=(4.0, 16.0, 50)), grown_in=("other", 12.4))
    (one,) = [one for one in findings_of(grown) if one.id == "steps-grow"]
    assert one.where is None and "16.0 ms 50 steps later (+12.0 ms in other)" in one.evidence


HOOKED = """
class Report:
    def start(self):
        self.model.register_forward_hook(self.other)
        for name, part in self.model.named_modules():
            part.register_forward_hook(functools.partial(self.taker(name)))
    def taker(self, name):
        def take(module, args, output):
            self.kept[name] = output
        return take
def main(hooks):
    model.register_forward_hook(hook=lambda *_: None)
    for hook in hooks:
        model.register_forward_pre_hook(hook)
def passed(module, args):
    pass
"""


@pytest.mark.parametrize(
    ("line", "function", "at"),
    [
        (8, "Report.taker.<locals>.take", (6, "start")),
        (12, "main.<locals>.<lambda>", (12, "main")),
        (15, "passed", (15, "passed")),
    ],
)
def test_hooks_that_pile_up_are_at_the_line_that_registers_them(
    line: int, function: str, at: tuple[int, str], tmp_path: Path
) -> None:
    """Of a line that registers what it was handed it is not known which hook that is: then it is the hook itself."""
    script = tmp_path / "hooked.py"
    script.write_text(HOOKED)
    root = {"hooks": (1, 480), "alike": (1, 48), "hook": (str(script), line, function)}
    (one,) = [one for one in findings_of(measured(growth=(4.0, 16.0, 50), root=root)) if one.id == "steps-grow"]
    assert one.where is not None and (one.where.line, one.where.function) == at
    assert "48 of the same function" in one.evidence and "handle.remove()" in one.instead and one.bound == "unknown"
    waits = measured(growth=(4.0, 16.0, 50), root=root, gpu_phases=PHASES, backlog_ms=0.0)
    assert {one.bound for one in findings_of(waits) if one.id == "steps-grow"} == {"launch"}


def test_hooks_that_a_loop_has_registered_are_at_the_line_of_the_loop(tmp_path: Path) -> None:
    """There the call can go in front of it."""
    script = tmp_path / "hooked.py"
    script.write_text(HOOKED + "report.start()\nfor x, y in batches:\n    report.start()\n    loss(x).backward()\n")
    root = {"hooks": (1, 480), "alike": (1, 48), "hook": (str(script), 8, "Report.taker.<locals>.take")}
    (one,) = [one for one in findings_of(measured(growth=(4.0, 16.0, 50), root=root)) if one.id == "steps-grow"]
    assert one.where is not None and one.where.line == 19 and one.evidence.endswith("registered at line 6")


@pytest.mark.parametrize("alike", [(0, 0), (4, 4), (0, 2)])
def test_hooks_of_many_parts_are_not_piled_up(alike: tuple[int, int]) -> None:
    """A tool that comes to look at each of a model's parts once, while another thing grows."""
    found = findings_of(measured(growth=(4.0, 16.0, 50), root={"hooks": (0, 900), "alike": alike}))
    assert {one.title for one in found if one.id == "steps-grow"} == {"each step takes longer than the last"}


def grows(times: Sequence[float], first_half: int = 30, profiled: int = 0) -> tuple[float, float, int] | None:
    """Of steps in a row, but for some that were profiled in between."""
    return growth([(at + profiled * (at >= first_half), took) for at, took in enumerate(times)])


def test_growth_is_steady_and_large() -> None:
    uneven = [1.0] * 10 + [2.0] * 10 + [3.0] * 10 + [2.5] * 10 + [4.0] * 10 + [5.0] * 10
    assert grows(uneven) == (1.0, 5.0, 50), "one sixth out of order"
    assert grows([*uneven[:50], *[3.5] * 10]) is None, "the last is not the longest"
    for last, known in ((4.5, (1.0, 4.5, 50)), (1.5, None)):
        steps = list(enumerate([*(float(at // 10 + 1) for at in range(50)), *[last] * 10]))
        assert growth(steps, known=True) == known, "something is seen to grow, on a machine whose pace varies"
        assert growth(steps) is None
    jump = list(enumerate(1.0 + 0.1 * (at // 10) + 4.0 * (at >= 30) for at in range(60)))
    varied = [(at, (24.8, 41.3, 33.4, 37.4, 68.2, 50.0)[at // 70]) for at in range(420)]  # hooks, beside other work
    assert growth(varied) is None and growth(varied, known=True) == (24.8, 50.0, 350)
    assert growth(jump) is None and growth(jump, known=True) == (1.0, pytest.approx(5.5), 50)
    assert grows([1.0 + 0.1 * n for n in range(60)]) == (pytest.approx(1.45), pytest.approx(6.45), 50)
    for times in ([1.0] * 60, [1.0 + 0.001 * n for n in range(60)], [1.0, 9.0] * 30, [float(n) for n in range(20)],
                  [60.0 - n for n in range(60)], [1.0] * 50 + [9.0] * 10):  # fmt: skip
        assert grows(times) is None


def test_a_jump_is_growth_where_as_many_steps_lie_between() -> None:
    """On an H200 the steps of a profile hid that hooks pile up: they lie between those whose times are quoted."""
    jumps = [1.0 + 0.001 * n for n in range(30)] + [2.0 + 0.001 * n for n in range(30)]
    assert grows(jumps) is None
    assert grows(jumps, profiled=1000) == (pytest.approx(1.0, abs=0.01), pytest.approx(2.0, abs=0.1), 1050)
    assert grows(jumps, profiled=20) is None, "twenty steps are not as long as the thousand that this would take"


def test_waiting_for_batches_comes_before_a_cause_in_the_model_that_takes_half_of_that() -> None:
    """A collate_fn that filled tensors one by one was told second to padding that cost a third of it."""
    waits = Finding(id="input", bound="input", share=0.5)
    padding = Finding(id="padding", bound="compute", share=0.25, named=True)
    assert [one.id for one in in_order([padding, waits])] == ["input", "padding"]
    more = msgspec.structs.replace(padding, share=0.3)
    assert [one.id for one in in_order([waits, more])] == ["padding", "input"]
    compute = msgspec.structs.replace(waits, id="compute", bound="compute")
    assert [one.id for one in in_order([compute, padding])] == ["padding", "compute"]  # which is part of it


@pytest.mark.parametrize(
    ("first", "dearest", "bound"),
    [
        (("input", 0.40, True), ("compute", 0.50, False), "input"),
        (("input", 0.20, True), ("compute", 0.70, False), "compute"),
        (("input", 0.40, False), ("compute", 0.50, False), "compute"),
        (("launch", 0.50, True), ("compute", 0.90, False), "launch"),  # which holds it: 0.4 are left
        (("launch", 0.50, True), ("compute", 0.90, True), "compute"),
        (("unknown", 0.0, True), ("compute", 0.60, False), "compute"),
    ],
)
def test_the_bound_is_of_the_cause_on_top_where_that_costs_about_as_much(first: Any, dearest: Any, bound: str) -> None:
    found = [Finding(id=of, bound=of, share=share, named=named) for of, share, named in (first, dearest)]
    assert bound_of(found) == bound
    assert bound_of([]) == "unknown"


def test_a_finding_that_was_divided_counts_whole_for_the_bound() -> None:
    parts = [
        Finding(id="input", bound="input", share=share, named=named) for share, named in ((0.3, True), (0.3, False))
    ]
    compute = Finding(id="compute", bound="compute", share=0.4)
    assert bound_of([parts[0], compute, parts[1]]) == bound_of([compute, *parts]) == "input"


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        ("    model(x).sum().backward()", 4),
        (
            "    model(x).sum().backward()\n    if last(x):\n        clip_grad_norm_(w)\n        optimizer.step()",
            4,
        ),
        ("    accelerator.backward(model(x))\n    optimizer.step()\n    optimizer.zero_grad()", 4),  # which skip most
        ("    model(x).sum().backward()\n    clip_grad_norm_(weights, 1.0)", None),
        ("    model.zero_grad()\n    model(x).sum().backward()", None),
        ("    model(x).sum().backward()\n    kept += [p.grad.clone() for p in weights]", None),
    ],
)
def test_gradients_that_are_wanted_of_each_sample_are_not_summed_over_more(
    loop: str, told: int | None, tmp_path: Path
) -> None:
    """As in private training, where each is clipped."""
    file = tmp_path / "train.py"
    file.write_text(f"import torch\n\nfor x in batch:\n{loop}\noptimizer.step()\n")
    found = findings_of(measured(**{**ACCUMULATES, "more": {**ACCUMULATES["more"], "argv": (str(file),)}}))
    where = [one.where and one.where.line for one in found if one.id == "micro-batches"]
    assert where == [] if told is None else where == [told]


@pytest.mark.parametrize(
    ("memory", "text"), [(64 * GIB, "all 32 rows at once in place of 32"), (12 * GIB, "4 micro-batches of 8 rows")]
)
def test_micro_batches_grow_as_far_as_memory_goes(memory: float, text: str) -> None:
    (text_,) = (one.instead for one in findings_of(measured(**ACCUMULATES, memory_bytes=memory)) if one.named)
    assert text in text_ and "BatchNorm" in text_


ASKED = "for x, y in zip(xs, ys):\n    loss = f(model(x[None]), y)\n    grads = torch.autograd.grad(loss, weights)\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ASKED, 3),
        ("for x in xs:\n    model.zero_grad()\n    model(x).backward()\n    kept.append(w.grad.clone())\n", 3),
        ("each = [torch.autograd.grad(y, x, create_graph=True)[0] for y in ys]\n", 1),
        ("def one(x):\n    return torch.autograd.grad(f(x), weights)\n\nfor x in xs:\n    keep(one(x))\n", 5),
        ("for x in xs:\n    model(x).backward()\n", None),  # summed, as of micro-batches
        ("for x in xs:\n    torch.autograd.grad(f(x), weights)\n    optimizer.step()\n", None),
    ],
)
def test_as_many_backwards_as_rows_that_are_used_one_by_one(text: str, line: int | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    micro = (32.0, 1.0) if "backward()" in text else None
    found = findings_of(measured(**{**EACH, "micro": micro, "more": {**EACH["more"], "argv": (str(file),)}}))
    told = [one for one in found if one.id == "gradients-of-each"]
    assert [one.where and one.where.line for one in told] == ([] if line is None else [line])
    assert all("torch.func.vmap(torch.func.grad(" in one.instead for one in told)


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, 0.9 * 31 / 32),
        ({"more": {"forwards_each": 0.03, "retained": 1.0}}, 0.5 * 31 / 32),  # each through the graph of all rows
        ({"more": {"forwards_each": 0.03}, "phases": Phases(forward=400.0, backward=500.0)}, 5 / 9 * 31 / 32),
        ({"phases": Phases(forward=400.0, backward=500.0)}, None),  # large operations: it has to be computed
        ({"gpu_phases": PHASES, "gpu_paced": Phases()}, None),
        ({"rows": 40.0}, None),
        ({"micro": (32.0, 1.0)}, None),  # losses go backward, of which no gradient is read
        ({"rows": 9.0}, None),  # of something else than rows
        ({"rows": 2.0, "more": {"backwards": 20}}, None),
        ({"rows": None}, None),
        ({"more": {"optimizer_steps": 0}}, None),
    ],
)
def test_gradients_of_each_row_take_their_backwards(
    changed: dict[str, Any], share: float | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(ASKED)
    more = {**EACH["more"], "argv": (str(file),), **changed.get("more", {})}
    found = findings_of(measured(**{**EACH, **changed, "more": more}))
    told = [one for one in found if one.named]
    assert [one.share for one in told if one.id == "gradients-of-each"] == (
        [] if share is None else [pytest.approx(share)]
    )
    if share is not None:
        assert len(told) == 1 and ("y.sum()" in told[0].instead) is (more["forwards_each"] < 0.5)


def test_the_gradients_of_each_row_are_those_of_the_advice() -> None:
    model, x, y = torch.nn.Linear(5, 3), torch.randn(4, 5, requires_grad=True), torch.randint(3, (4,))
    loss, params = torch.nn.functional.cross_entropy, dict(model.named_parameters())

    def loss_of_one(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(torch.func.functional_call(model, params, x[None]), y[None])

    found = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(params, x, y)
    each = [
        torch.autograd.grad(loss(model(a[None]), b[None]), list(params.values())) for a, b in zip(x, y, strict=True)
    ]
    for at, name in enumerate(params):
        torch.testing.assert_close(found[name], torch.stack([one[at] for one in each]))
    out = model(x)
    (of_out,) = torch.autograd.grad(loss(out, y, reduction="sum"), out)
    norms = x.square().sum(-1) * of_out.square().sum(-1)
    torch.testing.assert_close(norms, found["weight"].square().sum((1, 2)))


def test_groups_are_at_the_line_that_makes_them() -> None:
    places = {"made": ("train.py", 81, "main"), "stepped": ("train.py", 89, "main")}
    found = findings_of(measured(**{**GROUPS, "optimizer": {**GROUPS["optimizer"], **places}}))
    assert next(one for one in found if one.id == "optimizer-groups").where == Measured.place_at(places["made"])


def test_groups_come_before_launches_that_they_are_part_of() -> None:
    paced = Phases(forward=2.0, backward=2.0, optimizer=4.0)
    found = in_order(findings_of(measured(**{**GROUPS, "gpu_phases": paced, "gpu_paced": paced})))
    assert [one.id for one in found][:2] == ["optimizer-groups", "launch"] and bound_of(found) == "launch"
    assert found[0].share == pytest.approx((1 - 43 / 246) * 0.5)
    assert '(one["lr"], one["weight_decay"])' in found[0].instead


def test_a_switch_of_the_environment_is_at_the_line_that_sets_it(tmp_path: Path) -> None:
    name, source = "PYTORCH_NO_CUDA_MEMORY_CACHING", tmp_path / "train.py"
    source.write_text(f'import os\nos.environ["{name}"] = "1"\n')
    facts = {"switches": (name,), "argv": (str(source),), "device": "cuda"}
    (found, *_) = in_order(findings_of(measured(more=facts)))
    assert (found.id, found.where and found.where.line) == ("debug-switches", 2) and name in found.title


@pytest.mark.parametrize(("conv", "device", "told"), [(4, "cuda", True), (0, "cuda", False), (4, "cpu", False)])
def test_cudnn_that_is_off_is_told_of_convolutions_on_a_device(
    conv: int, device: str, told: bool, tmp_path: Path
) -> None:
    source = tmp_path / "train.py"
    source.write_text("from torch.backends import cudnn\ncudnn.benchmark = True\ncudnn.enabled = False\n")
    facts = {"switches": (CUDNN,), "argv": (str(source),), "device": device}
    found = [one for one in findings_of(measured(root={"conv": conv}, more=facts)) if one.id == ID]
    assert bool(found) is told
    for one in found:
        assert one.title == CUDNN_OFF and one.where is not None and one.where.line == 3 and one.named


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_switches_of_cuda_are_none_where_no_step_uses_it(device: str) -> None:
    of_cuda = ("CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING", "set_sync_debug_mode")
    found = [one for one in findings_of(measured(more={"switches": of_cuda, "device": device})) if one.id == ID]
    assert bool(found) is (device == "cuda")
    both = findings_of(measured(more={"switches": (*of_cuda, "detect_anomaly"), "device": device}))
    (told,) = (one for one in both if one.id == ID)
    assert told.title == ANOMALY and ("LAUNCH_BLOCKING" in told.evidence) is (device == "cuda")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("torch.autograd.set_detect_anomaly(False)\ntorch.autograd.set_detect_anomaly(args.debug)", 2),
        ("def fit():\n    with torch.autograd.detect_anomaly():\n        loss.backward()", 2),
        ("set_detect_anomaly(mode=False)\nTrainer(detect_anomaly=debug)", 2),
        ("Trainer(detect_anomaly=False)", None),
    ],
)
def test_the_line_that_has_anomaly_detection_on(text: str, line: int | None, tmp_path: Path) -> None:
    """Also in a file that only the optimizer's step tells of."""
    source = tmp_path / "loop.py"
    source.write_text(text)
    optimizer = {"stepped": (str(source), 1, "fit")}
    found = findings_of(measured(more={"switches": ("detect_anomaly",)}, optimizer=optimizer))
    (where,) = (one.where for one in found if one.id == ID)
    assert (where and where.line) == line
