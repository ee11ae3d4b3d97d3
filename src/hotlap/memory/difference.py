"""What made the difference in memory between two runs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from hotlap.records.memory import Category, Frame, MemoryDiff, MemoryDifference, MemoryUsage

Line = tuple[Frame, Category]


def difference(before: MemoryUsage, after: MemoryUsage, cwd_before: str = "", cwd_after: str = "") -> MemoryDiff:
    """By category and by line. Files are the same by where they lie from the folder of the run's command."""
    old, new = ({part.category: part.bytes for part in used.parts} for used in (before, after))
    categories = [
        MemoryDifference(category=category, before_bytes=old.get(category, 0), after_bytes=new.get(category, 0))
        for category in dict.fromkeys((*new, *old))
    ]
    return MemoryDiff(
        before_bytes=before.peak_bytes,
        after_bytes=after.peak_bytes,
        categories=_largest_first(categories),
        lines=_largest_first(list(_lines(_by_line(before, cwd_before), _by_line(after, cwd_after)))),
    )


def _largest_first(changes: list[MemoryDifference]) -> tuple[MemoryDifference, ...]:
    return tuple(sorted((one for one in changes if one.more), key=lambda one: -abs(one.more)))


def _by_line(used: MemoryUsage, cwd: str) -> Counter[Line]:
    inside = f"{cwd.rstrip('/')}/" if cwd else ""
    found: Counter[Line] = Counter()
    for one in used.lines:
        found[(one.where[0].removeprefix(inside), *one.where[1:]), one.category] += one.bytes
    return found


def _lines(old: Mapping[Line, int], new: Mapping[Line, int]) -> Iterator[MemoryDifference]:
    """A line that was moved is the same where it is the only one of its function and category that went and came."""
    moved = _moved(old, new)
    for (where, category), size in new.items():
        was = old.get(moved.get((where, category), (where, category)), 0)
        yield MemoryDifference(category=category, before_bytes=was, after_bytes=size, where=where)
    gone = old.keys() - new.keys() - set(moved.values())
    for where, category in sorted(gone):
        yield MemoryDifference(category=category, before_bytes=old[where, category], after_bytes=0, where=where)


def _moved(old: Mapping[Line, int], new: Mapping[Line, int]) -> dict[Line, Line]:
    """Lines of the one by those of the other."""
    places: dict[tuple[str, str, Category], tuple[list[Line], list[Line]]] = defaultdict(lambda: ([], []))
    for side, (mine, others) in enumerate(((old, new), (new, old))):
        for line in mine.keys() - others.keys():
            (file, _, function), category = line
            places[file, function, category][side].append(line)
    return {came[0]: went[0] for went, came in places.values() if len(went) == len(came) == 1}
