"""Copies between host and device, and what they are part of."""

from typing import Any

from hotlap.records.diagnosis import Place
from hotlap.records.trace import CopyTime
from hotlap.trace.analyses.copies import copies
from hotlap.trace.analyses.syncs import WITHIN_AN_OP, syncs

from .build import call, kernel, make, op, python, view

OUT, IN = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"
ENGINE = "autograd::engine::evaluate_function: ReluBackward0"


def copied(
    start: int, correlation: int, name: str, *around: str, **more: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The host's side, 40 long, with the ops around it, the outermost first; and the copy, 20 long from 10 on."""
    ops = [op(one, start + at, 40 - 2 * at, **more) for at, one in enumerate((*around, "aten::copy_"))]
    host = [*ops, call("cudaMemcpyAsync", start + 10, 3, correlation, **more)]
    host.append(call("cudaStreamSynchronize", start + 14, 10, correlation + 100, **more))
    return host, kernel(name, start + 10, 20, correlation, cat="memcpy", bytes=100)


def found(*parts: tuple[list[dict[str, Any]], dict[str, Any]], **more: Any) -> dict[tuple[str, str], CopyTime]:
    trace = make([row for host, _ in parts for row in host], [*(row for _, row in parts), *more.get("device", ())])
    return {(one.way, one.within): one for one in copies(view(trace, more.get("start", 0)))}


def test_copies_are_told_by_what_they_are_part_of() -> None:
    in_forward = copied(0, 1, OUT, "aten::relu", "aten::copy_")
    in_backward = copied(100, 2, IN, ENGINE, "ReluBackward0", "aten::to", "aten::_to_copy", tid=2)
    own = copied(200, 3, OUT, "aten::to", "aten::_to_copy")
    batch = copied(300, 4, IN, "aten::to", "aten::_to_copy")
    item = (
        [op("aten::item", 400, 40), call("cudaMemcpyAsync", 405, 3, 5)],
        kernel(OUT, 410, 5, 5, cat="memcpy", bytes=4),
    )
    compiled = copied(500, 6, OUT, "CompiledFunction", "aten::to")
    inside = kernel("Memcpy DtoD (Device -> Device)", 600, 5, 7, cat="memcpy", bytes=9)
    line = [python("train.py(20): main", 0, 1000)], inside
    rows = found(in_forward, in_backward, own, batch, item, compiled, line)
    assert {key: (one.count, one.bytes, one.exposed_ns) for key, one in rows.items()} == {
        ("out", "op"): (1, 100, 20),
        ("in", "backward"): (1, 100, 20),
        ("out", ""): (3, 204, 45),
        ("in", ""): (1, 100, 20),
    }
    assert rows["out", "op"].where == Place(file="train.py", line=20, function="main")


def test_what_a_kernel_hides_is_not_exposed_and_what_began_earlier_is_like_most() -> None:
    batch, back = (
        copied(300, 4, IN, "aten::to", "aten::_to_copy"),
        copied(100, 2, IN, ENGINE, "ReluBackward0", "aten::to"),
    )
    earlier = [], kernel(IN, 50, 20, 77, cat="memcpy", bytes=50)
    rows = found(batch, ([], kernel("mm", 305, 15)), (back[0], back[1] | {"bytes": 300}), earlier, start=60)
    assert {key: (one.count, one.bytes, one.exposed_ns) for key, one in rows.items()} == {
        ("in", "backward"): (2, 350, 30),
        ("in", ""): (1, 100, 10),
    }
    assert found(([op("aten::mm", 0, 9)], kernel("mm", 0, 9))) == {}


def test_waits_for_them_are_not_the_users_cpu() -> None:
    own = copied(200, 3, OUT, "aten::to", "aten::_to_copy")
    function = copied(300, 4, OUT, "Solve", "aten::to")  # of a `torch.autograd.Function`, whose code is the user's
    parts = (copied(0, 1, OUT, "aten::conv2d", "aten::convolution", "aten::copy_"), own, function)
    trace = make([row for host, _ in parts for row in host], [row for _, row in parts])
    causes = {(one.op, one.cause) for one in syncs(view(trace))}
    users = "`.cpu()` or `.to('cpu')`"
    assert causes == {("aten::conv2d", WITHIN_AN_OP), ("aten::to", users), ("Solve", users)}
