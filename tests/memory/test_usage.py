"""Whose memory it is: on windows made by hand, and against a count forwards."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.memory.usage import usage
from hotlap.records.memory import Blocks, Events, Mark, MemoryUsage, MemoryWindow, ModuleCalls, Owner, Segment

from .windows import FILE, Recorded, steps

GRAPHS = {
    "segments": (Segment(address=0, bytes=9, allocated=9, graph=True),),
    "blocks": Blocks(addresses=(1,), bytes=(8,), stacks=(-1,), segments=(0,)),
}


def parts(found: MemoryUsage) -> dict[str, int]:
    return {one.category: one.bytes for one in found.parts}


# categories


def made(*phases: str) -> Recorded:
    """One block of 8 bytes, begun in the first phase; it ends in the last, if that is another."""
    recorded = Recorded()
    for at, phase in enumerate(phases):
        recorded.phase(phase)
        if at == 0:
            recorded.alloc(1, 8)
    if len(phases) > 1:
        recorded.free(1)
    return recorded


def owned(category: str, *phases: str, name: str = "net.weight") -> Recorded:
    recorded = Recorded()
    recorded.phase(phases[0])
    recorded.alloc(1, 8)
    for phase in phases[1:]:
        recorded.phase(phase)
    recorded.owned(1, category, name)
    return recorded


def before() -> Recorded:
    recorded = Recorded()
    recorded.phase("forward")
    recorded.before(1, 8)
    return recorded


def once_more() -> Recorded:
    """The forward is entered twice in a row: nothing else was open between."""
    return made("forward", "forward")


def a_step_later() -> Recorded:
    recorded = made("optimizer")
    recorded.step_ends()
    recorded.phase("optimizer")
    recorded.free(1)
    return recorded


def of_two_owners() -> Recorded:
    recorded = owned("held", "forward")
    recorded.owned(1, "parameters", "net.weight")
    return recorded


def of_an_earlier_owner() -> Recorded:
    """The address was the gradient's before it was given back and taken again."""
    recorded = Recorded()
    recorded.phase("backward")
    recorded.alloc(1, 4)
    recorded.owned(1, "gradients", "net.weight")
    recorded.free(1)
    recorded.phase("forward")
    recorded.alloc(1, 8)
    recorded.phase("backward")
    recorded.free(1)
    return recorded


@pytest.mark.parametrize(
    ("recorded", "category"),
    [
        *((owned(one, "forward"), one) for one in ("parameters", "buffers", "gradients", "optimizer state", "inputs")),
        (owned("outputs", "forward"), "outputs"),
        (owned("held", "other"), "held"),
        (owned("held", "other", name="x"), "inputs"),  # a variable that gets the batch
        (owned("held", "data", name="x"), "inputs"),
        (owned("held", "h2d", "forward", name="x"), "inputs"),
        (owned("held", "data", name="kept[…]"), "held"),
        (made("data", "forward"), "inputs"),
        (made("other", "forward"), "temporaries"),
        (before(), "workspaces"),
        (made("forward", "backward"), "activations"),
        (made("forward"), "activations"),
        (once_more(), "temporaries"),
        (made("backward"), "unknown"),
        (made("backward", "optimizer"), "temporaries"),
        (made("optimizer"), "unknown"),
        (a_step_later(), "temporaries"),
        (of_two_owners(), "parameters"),
        (of_an_earlier_owner(), "activations"),
    ],
)
def test_each_rule(recorded: Recorded, category: str) -> None:
    assert parts(usage(recorded.window())) == {category: 8}


def test_pools_of_graphs_are_the_scripts_where_it_holds_them() -> None:
    assert parts(usage(Recorded().window(**GRAPHS))) == {"graph pools": 8}
    held = (Owner(1, 8, "parameters", "net.weight", 1),)
    assert parts(usage(Recorded().window(**GRAPHS, owners=held))) == {"parameters": 8}


def test_what_the_allocator_adds_is_told() -> None:
    rounded = Blocks(addresses=(1, 2), bytes=(500, 12), rounded=(512, 512), stacks=(-1, -1))
    found = usage(Recorded().window(blocks=rounded))
    assert parts(found) == {"unknown": 512, "rounding": 512}
    assert found.peak_bytes == found.between_bytes == 1024


# the peak


def test_a_step() -> None:
    found = usage(steps().window(reserved_bytes=4096, mallocs=2, retries=1, total_bytes=9000, used_bytes=5000))
    assert (found.peak_bytes, found.phase, found.step) == (1410, "backward", 5)
    assert parts(found) == {
        "activations": 1000, "optimizer state": 200, "parameters": 100, "gradients": 100, "inputs": 10,
    }  # fmt: skip
    assert found.part("activations") == 1000 and found.part("graph pools") == 0
    (line, gradients, batch) = found.lines
    assert (line.where, line.category, line.bytes, line.blocks) == ((FILE, 20, "main"), "activations", 1000, 1)
    assert (gradients.where[1], gradients.category, gradients.names) == (20, "gradients", ("net.weight",))
    assert (batch.where[1], batch.category) == (10, "inputs")
    assert (found.reserved_bytes, found.mallocs, found.retries) == (4096, 2, 1)
    assert (found.total_bytes, found.used_bytes, found.between_bytes) == (9000, 5000, 400)


def test_an_address_that_is_used_again_is_another_piece() -> None:
    recorded = Recorded()
    recorded.phase("forward")
    recorded.alloc(1, 8, line=1)
    recorded.free(1)
    recorded.alloc(1, 64, line=2)
    recorded.free(1)
    recorded.alloc(1, 16, line=3)
    found = usage(recorded.window())
    assert found.peak_bytes == 64 and [one.where[1] for one in found.lines] == [2]


def test_a_window_of_which_nothing_is_known() -> None:
    found = usage(Recorded().window())
    assert (found.peak_bytes, found.step, found.phase, found.parts) == (0, 0, "", ())


MOVES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 1000), st.integers(0, 5)), max_size=60)


def replayed(moves: list[tuple[int, int, int]], there: int) -> Recorded:
    """Addresses are taken where they are free, and else given back; some are there before; phases change at times."""
    recorded = Recorded()
    for address in range(there):
        recorded.before(address, 10 * address + 1)
    for address, size, turn in moves:
        if turn == 0:
            recorded.step_ends()
        elif turn < 3:
            recorded.phase(("forward", "backward")[turn - 1])
        if address in recorded.live:
            recorded.free(address)
        else:
            recorded.alloc(address, size, line=address)
    return recorded


@settings(max_examples=150, deadline=None)
@given(MOVES, st.integers(0, 5))
def test_the_peak_is_that_of_a_count_forwards(moves: list[tuple[int, int, int]], there: int) -> None:
    recorded = replayed(moves, there)
    found = usage(recorded.window())
    assert found.peak_bytes == recorded.most == sum(one.bytes for one in found.parts)
    assert found.between_bytes == sum(size for size, _ in recorded.live.values())


# what stays


def test_what_each_step_leaves_is_told_with_what_holds_it() -> None:
    recorded = steps(4, leaks=True)
    for address in range(1000, 1004):
        recorded.owned(address, "outputs", "losses[…]")  # seen again at the end
    found = usage(recorded.window())
    (stays,) = found.stays
    assert (stays.where, stays.bytes, stays.blocks) == ((FILE, 21, "main"), 7.0, 1.0)
    assert stays.names == ("losses[…]",) and stays.graph
    assert found.grown_bytes == 7.0


def test_what_only_some_steps_leave_is_not() -> None:
    recorded = steps(3)
    recorded.phase("forward")
    recorded.alloc(9, 7)
    found = usage(recorded.window())
    assert found.stays == () and found.grown_bytes == 0.0


def test_a_buffer_that_is_full_stays_and_does_not_grow() -> None:
    """Each step lets the oldest of four go."""
    recorded = Recorded()
    for address in range(4):
        recorded.before(address, 64)
    for step in range(4):
        recorded.phase("forward")
        recorded.free(step)
        recorded.alloc(10 + step, 64)
        recorded.step_ends()
    found = usage(recorded.window())
    assert [one.bytes for one in found.stays] == [64.0] and found.grown_bytes == 0.0


def test_growth_counts_what_goes_as_the_first_thing_that_happens() -> None:
    recorded = Recorded()
    recorded.before(1, 100)
    recorded.step_ends()
    recorded.free(1)
    recorded.step_ends()
    assert usage(recorded.window()).grown_bytes == -100.0


# gradients, variables, modules


def test_gradients_that_lie_through_the_forward() -> None:
    """`zero_grad` right before the backward frees several of them, one by one, when the forward is over."""
    recorded = steps()
    for weight in (11, 12):
        recorded.before(weight, 40)
        recorded.owned(weight, "gradients", f"net.{weight}")
    recorded.phase("forward")
    recorded.alloc(4, 1000)
    for weight in (11, 5, 12):
        recorded.free(weight)
    recorded.phase("backward")
    recorded.free(4)
    assert usage(recorded.window()).idle_gradients_bytes == 180


def test_gradients_that_are_freed_after_the_update_do_not() -> None:
    assert usage(steps(frees_gradients=True).window()).idle_gradients_bytes == 0


def test_gradients_that_are_freed_before_the_model_runs_do_not() -> None:
    recorded = steps()
    recorded.phase("forward")
    recorded.free(5)
    recorded.alloc(4, 1000)
    recorded.phase("backward")
    assert usage(recorded.window()).idle_gradients_bytes == 0


def weights_and(name: str, *sizes: int) -> MemoryUsage:
    recorded = Recorded()
    for at, size in enumerate((16, 32)):
        recorded.before(at, size)
        recorded.owned(at, "parameters", f"net.{at}")
    for at, size in enumerate(sizes, start=10):
        recorded.before(at, size)
        recorded.owned(at, "held", name)
    return usage(recorded.window())


def test_variables_that_hold_memory_and_copies_of_the_weights() -> None:
    (copies,) = weights_and("best[…]", 32, 16, 8).holders
    assert (copies.name, copies.bytes, copies.blocks, copies.weights) == ("best[…]", 56, 3, True)
    (other,) = weights_and("kept[…]", 32, 32).holders
    assert not other.weights


def names(*given: str, **others: str) -> list[tuple[str, int]]:
    recorded = Recorded()
    for at, name in enumerate(given):
        recorded.before(at, 8)
        recorded.owned(at, "parameters", name)
    for at, (category, name) in enumerate(others.items(), start=100):
        recorded.before(at, 16)
        recorded.owned(at, category.replace("_", " "), name)
    return [(one.name, one.bytes) for one in usage(recorded.window()).modules]


@pytest.mark.parametrize(
    ("given", "modules"),
    [
        (("0.weight", "0.bias", "2.weight"), [("0", 16), ("2", 8)]),
        (("a.b.c.weight", "a.b.d.weight", "a.x.weight"), [("a.b.c", 8), ("a.b.d", 8), ("a.x", 8)]),
        (("module.t.h.0.w", "module.t.h.1.w", "module.head.w"), [("module.t.h", 16), ("module.head", 8)]),
        (("pos_embed", "blocks.0.w"), [("pos_embed", 8), ("blocks.0", 8)]),
        (tuple(f"layers.{at}.w" for at in range(20)), [("layers." + str(at), 8) for at in range(16)]),
        ((*(f"layers.{at}.w" for at in range(20)), "out.w"), [("layers", 160), ("out", 8)]),
    ],
)
def test_modules_are_told_by_the_first_parts_of_names(given: tuple[str, ...], modules: list[tuple[str, int]]) -> None:
    assert names(*given) == modules


def test_modules_hold_what_goes_with_their_parameters() -> None:
    found = names("a.w", gradients="a.w", optimizer_state="exp_avg of b.w", held="x")
    assert found == [("a", 24), ("b", 16)]


def test_what_a_module_s_call_allocates_is_in_it() -> None:
    recorded = Recorded()
    recorded.phase("forward")
    for address in (1, 2, 3, 4):
        recorded.alloc(address, 8 * address)
    window = recorded.window()
    inner = ModuleCalls(names=("Net", "body.0"), times=window.events.times[1:], modules=(0, 1, -1))
    found = usage(msgspec.structs.replace(window, calls=inner)).modules
    assert [(one.name, one.bytes) for one in found] == [("Net", 16 + 32), ("body.0", 24)]
    assert {part.category for one in found for part in one.parts} == {"activations"}
    broken = ModuleCalls(names=(), times=(5, 1), modules=(7, -1, -1, 3))
    assert usage(msgspec.structs.replace(window, calls=broken)).modules == ()


# damage


def cut(column: str) -> MemoryWindow:
    window = steps().window()
    shorter = msgspec.structs.replace(window.events, **{column: getattr(window.events, column)[:5]})
    return msgspec.structs.replace(window, events=shorter)


def changed(**fields: Any) -> MemoryWindow:
    return msgspec.structs.replace(steps().window(), **fields)


def unknown_addresses() -> MemoryWindow:
    events = steps().window().events
    return changed(events=msgspec.structs.replace(events, addresses=tuple(range(900, 900 + len(events.addresses)))))


def times_that_go_back() -> MemoryWindow:
    events = steps().window().events
    return changed(events=msgspec.structs.replace(events, times=events.times[::-1]))


def sizes_below_zero() -> MemoryWindow:
    events = steps().window().events
    return changed(events=msgspec.structs.replace(events, bytes=tuple(-size for size in events.bytes)))


@pytest.mark.parametrize(
    "made",
    [
        *((lambda column=column: cut(column)) for column in Events.__struct_fields__),
        unknown_addresses,
        times_that_go_back,
        sizes_below_zero,
        lambda: changed(events=Events(actions=(9, -1), addresses=(1, 1), bytes=(5, 5), times=(1, 2), stacks=(0, 0))),
        lambda: changed(blocks=Blocks(addresses=(1, 2, 3), bytes=(4,), stacks=())),
        lambda: changed(blocks=Blocks(addresses=(1,), bytes=(-4,), stacks=(0,), rounded=(-9,))),
        lambda: changed(frames=(), stacks=((7,), (), (-1,))),
        lambda: changed(marks=()),
        lambda: changed(marks=tuple(reversed(steps().marks))),
        lambda: changed(marks=(Mark(10**30, "", 0),)),
        lambda: changed(owners=(Owner(1, 1, "inputs", "", -5),)),
        lambda: changed(blocks=Blocks(), events=Events()),
    ],
)
def test_damage_is_passed_over(made: Callable[[], MemoryWindow]) -> None:
    found = usage(made())
    again = msgspec.json.decode(msgspec.json.encode(found), type=MemoryUsage)
    assert again == found and found.peak_bytes == sum(one.bytes for one in found.parts)
