"""The most memory at each moment of a step, on windows made by hand."""

from hotlap.memory.moments import PARTS, moments, most, series, varies
from hotlap.memory.usage import usage
from hotlap.records.fit import Moments
from hotlap.records.memory import Blocks, Events, Mark, MemoryWindow

ALLOC, FREE = 0, 1
MARK = Mark(0, "forward", 1)


def window(*events: tuple[int, int, int], **more: object) -> MemoryWindow:
    """Of events (action, address, bytes), one a ns from 0 on; forward from 0 on, backward from 10 on."""
    actions, addresses, sizes = zip(*events, strict=True)
    rows = {"actions": actions, "addresses": addresses, "bytes": sizes, "times": tuple(range(len(events)))}
    fields = {
        "blocks": Blocks(addresses=(99,), bytes=(1000,), rounded=(1024,), stacks=(-1,)),
        "events": Events(**rows, stacks=(-1,) * len(events)),
        "marks": (Mark(0, "forward", 1), Mark(10, "backward", 1), Mark(20, "step end", 1)),
        **more,
    }
    return MemoryWindow(when="steady", device="cpu", source="operations", **fields)  # type: ignore[arg-type]


STEP = [(ALLOC, at, 10) for at in range(10)] + [(FREE, at, 10) for at in range(9, -1, -1)]


def test_a_phase_has_moments_and_the_largest_is_the_peak() -> None:
    made = window(*STEP)
    found = moments(made)
    assert most(found) == usage(made).peak_bytes == 1124
    assert found["forward"] == Moments(10, tuple(1024 + 10 * at for at in range(1, 11)))
    assert "backward" not in found  # which took nothing
    many = moments(window(*((ALLOC, at, 10) for at in range(20)), marks=(MARK,)))
    assert len(many["forward"].bytes) == PARTS


def test_when_memory_is_given_back_makes_no_other_moment() -> None:
    late = [*STEP[:5], (FREE, 0, 10), *STEP[5:10]]
    found = moments(window(*late, marks=(MARK,)))["forward"]
    assert found == Moments(10, tuple(1024 - 90 + 10 * (at - (at > 5)) for at in range(1, 11)))


def test_steps_of_a_window_share_their_moments() -> None:
    marks = tuple(
        Mark(20 * step + at, name, step)
        for step in range(2)
        for at, name in ((0, "forward"), (5, "backward"), (19, "step end"))
    )
    bigger = [(action, address, 2 * size) for action, address, size in STEP]
    once, twice = moments(window(*STEP, marks=marks[:3])), moments(window(*STEP, *bigger, marks=marks))
    assert most(twice) == most(once) + 100
    assert varies(window(*STEP, *bigger, marks=marks)) == 100 / most(twice)
    assert varies(window(*STEP, marks=marks[:3])) == varies(window(*STEP, marks=())) == 0.0  # of one step, of none
    assert twice["forward"].allocations == once["forward"].allocations == 5
    later = (*marks[:4], Mark(26, "backward", 1), marks[5])
    longer = moments(window(*STEP, *bigger, marks=later))
    assert longer["backward"].allocations == 0 and len(longer["backward"].bytes) == 1


def test_a_phase_with_other_allocations_in_another_run_is_one_moment() -> None:
    one = {"forward": Moments(2, (1, 5)), "backward": Moments(2, (7, 3))}
    other = {"forward": Moments(4, (2, 9)), "backward": Moments(2, (8, 4))}
    assert series([one, other]) == [(5, 9), (7, 8), (3, 4)]
    assert series([one, {"forward": Moments(2, (1, 5))}]) == []


def test_a_window_that_does_not_tell_has_none() -> None:
    assert moments(window(*STEP, left_out=1)) == {} and moments(window(*STEP, marks=())) == {}
