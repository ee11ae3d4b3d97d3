"""How memory, or time, grows with one number, by a few measured points, and what it is elsewhere.

Memory of a step is the largest of several parts: one that no option changes (the optimizer's update), one that grows
with the batch, and attention without a fused kernel with the square of the length. So it is convex: the line through
the last two points is never above it. A model counts once it predicted a point that it had not seen: the last one. By
how much it missed there, and how that grows with the next power, says how wide the range around a prediction is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from hotlap.records.fit import Moments, Range, Shape

from .moments import most, series

WIDER: Final = 3.0
"""Of a model's miss at the last point, by which it may be off between the points."""
LEAST: Final = 3
"""Points from which a model is tested by one that it has not seen."""
FARTHEST: Final = 16
"""Times the largest value that was measured. Beyond, nothing but `at least` is said."""
OF_RISE: Final = 0.25
"""Of what the last point rose by, that a model may miss there."""
ROUNDING: Final = 1e-9
"""Of floating-point numbers, as a share: far less than a byte of what is predicted matters."""
SIMPLER: Final = 4.0
"""A model with more coefficients has to miss by so many times less."""


class Noise(NamedTuple):
    """Of a quantity, as shares of it. flat: it changed by less, so not at all. miss: a model may be off by so much at a
    point that it had not seen. floor: no model is trusted to be nearer than this. convex: as memory in tensors is."""

    flat: float
    miss: float
    floor: float
    convex: bool = True


PEAK: Final = Noise(flat=0.002, miss=0.01, floor=0.0005)
"""Of bytes in tensors, the same in each run but for the allocator's rounding."""
RESERVED: Final = Noise(flat=0.01, miss=0.02, floor=0.005)
"""Of bytes that CUDA's allocator holds, in pieces of 2 MiB and more."""
RESIDENT: Final = Noise(flat=0.02, miss=0.05, floor=0.02, convex=False)
"""Of a process's memory on the host, of which the C library gives back what it likes."""
TIME: Final = Noise(flat=0.05, miss=0.1, floor=0.03, convex=False)
"""Of ms a step. A larger batch may use the device better."""
OTHER_KERNELS: Final = 0.01
"""By so much more a model may be off for each doubling beyond the runs, where kernels choose other algorithms."""


@dataclass(frozen=True)
class Curve:
    """One quantity over the values of an option. measured: of each value. constant: where it did not change, it is
    taken not to."""

    measured: Mapping[int, float]
    noise: Noise
    constant: bool = False

    @cached_property
    def _points(self) -> Sequence[tuple[int, float]]:
        return sorted(self.measured.items())

    @property
    def last(self) -> int:
        """The largest value that was measured. Raises ValueError where none was."""
        return max(self.measured)

    @property
    def shape(self) -> Shape:
        """How it grows."""
        return self._model.shape

    @property
    def settled(self) -> bool:
        """Whether a model predicted a point that it had not seen."""
        return self._model.at is not None

    @cached_property
    def _model(self) -> "_Model":
        points = self._points
        if len(points) < 2:
            return _Model("unknown")
        least, most = min(self.measured.values()), max(self.measured.values())
        if most - least <= self.noise.flat * most:
            return _Model("flat")
        if points[-1][1] < points[0][1]:
            return _Model("falling")
        return _model_of(points, self.noise) or _Model("unclear" if len(points) > 2 else "unknown")

    def at(self, value: int) -> Range | None:
        """Where it lies at a value; as measured where it was. None where nothing is known of it."""
        if value in self.measured:
            return Range(low=self.measured[value], likely=self.measured[value], high=self.measured[value])
        if not self.measured:
            return None
        if value > self.last:
            return self._beyond(value)
        return self._within(value)

    def _within(self, value: int) -> Range:
        """At a value below one that was measured: between its neighbours, if a model does not say more."""
        model, points = self._model, self._points
        if model.at is not None and value >= model.start:
            return _around(model.at(value), WIDER * model.miss)
        before, after = [one for one in points if one[0] < value], [one for one in points if one[0] > value]
        low, high = before[-1][1] if before else 0.0, after[0][1]
        if model.shape == "falling":
            return Range(low=min(low, high), high=max(low, high) if before else None)
        if self._convex and before:
            left, right = before[-2:], after[:2]
            beside = [_polynomial(pair, 1)(value) for pair in (left, right) if len(pair) == 2]
            under, over = max([low, *beside]), _polynomial((before[-1], after[0]), 1)(value)
            return Range(low=min(under, over), high=max(under, over))  # slopes may fall a little, by noise
        return Range(low=min(low, high), high=max(low, high))

    @cached_property
    def _slopes(self) -> Sequence[float]:
        return [(two[1] - one[1]) / (two[0] - one[0]) for one, two in pairwise(self._points)]

    @property
    def _convex(self) -> bool:
        """Whether slopes only grow, but for noise, and none is negative."""
        points, slopes = self._points, self._slopes
        rising = all(
            (two - one) * (points[at + 2][0] - points[at + 1][0]) >= -2 * self.noise.miss * points[at + 2][1]
            for at, (one, two) in enumerate(pairwise(slopes))
        )
        return self.noise.convex and rising and bool(slopes) and slopes[0] >= 0

    def _beyond(self, value: int) -> Range:
        """At a value above all that were measured."""
        model, points = self._model, self._points
        top, far = points[-1][1], value / self.last
        least = top * (1 - (self.noise.floor if self.noise.convex else self.noise.miss))
        if model.shape == "falling":
            return Range(low=0.0, high=top * (1 + self.noise.floor))
        if model.at is not None:
            at, off = model.at, self._off
            # what is no less at a smaller value is no less here
            nearer = [
                value,
                *(self.last * 2 ** (part / 4) for part in range(1, int(4 * math.log2(min(far, FARTHEST))) + 1)),
            ]
            low = max(least, *(at(one) - off(one) for one in nearer if one <= value))
            likely = max(low, at(value))
            return Range(low=low) if far > FARTHEST else Range(low=low, likely=likely, high=likely + off(value))
        if model.shape == "flat" and self.constant:
            return Range(low=least, likely=top, high=top * (1 + self.noise.flat))
        if model.shape == "flat" or len(points) < 2:
            return Range(low=least)
        return self._bounds(value, least)

    def _off(self, value: float) -> float:
        """By how much the model may be off beyond the last point."""
        model = self._model
        assert model.at is not None
        return model.off(value) + OTHER_KERNELS * math.log2(value / self.last) * max(0.0, model.at(value))

    def _bounds(self, value: int, least: float) -> Range:
        """Beyond, where no model holds. The coefficients of what takes memory are not negative: so it is no more than
        the last point's share of a parabola through the origin, which is not said of two points alone."""
        (before, _), (last, top) = self._points[-2:]
        points, far = self._points, value / last
        convex = self._convex
        off = self.noise.miss * top * (1 + 2 * (value - last) / (last - before))
        low = max(least, top + self._slopes[-1] * (value - last) - off) if convex else least
        if len(points) < 3 or far > FARTHEST:
            return Range(low=low)
        if convex or not self.noise.convex:
            high = min(top * far**2, max(top * far, _polynomial(points[-3:], 2)(value)))
        else:
            lines = [_polynomial((one, two), 1) for at, one in enumerate(points) for two in points[at + 1 :]]
            high = max(top, *(line(value) for line in lines))
        return Range(low=low, high=max(low, high) + off)

    def largest(self, limit: float) -> tuple[int | None, int | None]:
        """The largest value that stays within a limit for sure, 0 for none, and that which it may at most be; None for
        what the points do not tell."""
        if self.shape in ("falling", "unknown") and len(self.measured) < 2:
            return None, None
        most = FARTHEST * self.last
        sure = _most(lambda value: _within_limit(self._range(value).high, limit), most)
        possible = _most(lambda value: self._range(value).low <= limit * (1 + ROUNDING), most)
        return (sure or self._sure(limit)), None if possible == most else possible

    def _range(self, value: int) -> Range:
        return self.at(value) or Range(low=0.0)

    def _sure(self, limit: float) -> int:
        """By the measured points alone."""
        return max((x for x, y in self._points if y <= limit), default=0)


@dataclass(frozen=True)
class Highest(Curve):
    """The largest of several quantities, as the peak is of the moments of a step. moments: of each value. varies: share
    by which that of one step and of another differ, so that chance decides which is measured."""

    moments: Mapping[int, Mapping[str, Moments]] = field(default_factory=dict)
    varies: float = 0.0

    @cached_property
    def _curves(self) -> Sequence[Curve]:
        """Of the moments, where they are known in each run and make up its peak."""
        runs = [self.moments.get(value, {}) for value in self.measured]
        peaks = self.measured.values()
        if len(runs) < LEAST or any(
            abs(most(one) - peak) > self.noise.miss * peak for one, peak in zip(runs, peaks, strict=True)
        ):
            return ()
        return [
            Curve(dict(zip(self.measured, row, strict=True)), self.noise, constant=True) for row in set(series(runs))
        ]

    @property
    def settled(self) -> bool:
        """Whether a model of each moment predicted what it had not seen."""
        return super().settled or (
            bool(self._curves) and all(one.settled or one.shape == "flat" for one in self._curves)
        )

    def at(self, value: int) -> Range | None:
        """As of `Curve`, by the moments where they tell more."""
        found = self._at(value)
        if found is None or value in self.measured or not self.varies:
            return found
        high = None if found.high is None else found.high * (1 + self.varies)
        return Range(low=found.low * (1 - self.varies), likely=found.likely, high=high)

    def _at(self, value: int) -> Range | None:
        curves = self._curves
        if value in self.measured or value < self.last or not curves or self.shape in ("flat", "falling"):
            return super().at(value)
        found = [one for curve in curves if (one := curve.at(value)) is not None]
        low = max(one.low for one in found)
        highs = [one.high for one in found if one.high is not None]
        if len(highs) < len(found):
            return Range(low=low)
        likely = max(one.likely or 0.0 for one in found)
        clear = all(one.likely is not None or (one.high or 0.0) <= likely for one in found)
        return Range(low=low, likely=likely if clear else None, high=max(highs))


@dataclass(frozen=True)
class Above(Curve):
    """What lies above another quantity, as the memory of a process does above its tensors. below: the other; where the
    distance was about the same in all runs it is taken to be so elsewhere."""

    below: Curve = field(default_factory=lambda: Curve({}, PEAK))

    @cached_property
    def _distances(self) -> Sequence[float]:
        """To the other, of each value; none where they differ."""
        both = [(y, self.below.measured[x]) for x, y in self.measured.items() if x in self.below.measured]
        found = [one - other for one, other in both]
        alike = len(found) >= LEAST and max(found) - min(found) <= self.noise.miss * max(one for one, _ in both)
        return found if alike else ()

    def at(self, value: int) -> Range | None:
        """As of `Curve`, or by the distance."""
        under = self.below.at(value)
        if value in self.measured or not self._distances or under is None:
            return super().at(value)
        distances = dict(zip(self.measured, self._distances, strict=True))
        trend = _polynomial(list(distances.items()), 1)(value)
        off = self.noise.miss * max(self.measured.values()) * (1 + math.log2(max(1.0, value / self.last)))
        likely = None if under.likely is None else max(0.0, under.likely + trend)
        low = max(0.0, under.low + min(*self._distances, trend) - off)
        high = None if under.high is None else under.high + max(*self._distances, trend) + off
        return Range(low=low, likely=likely, high=high)


class _Model(NamedTuple):
    """at: the quantity at a value, from start on; None where no model holds. off: by how much it may be off beyond the
    last point. miss: at the last point, before it was used, as a share; never below the noise's floor."""

    shape: Shape
    at: Callable[[float], float] | None = None
    off: Callable[[float], float] = abs
    miss: float = 0.0
    start: float = 0.0


def _model_of(points: Sequence[tuple[int, float]], noise: Noise) -> _Model | None:
    """The simplest model that predicted the last of three points or more as well as others; None where none did."""
    seen, last = points[:-1], points[-1]
    if len(seen) < 2:
        return None
    tries: list[tuple[Shape, int, int]] = [("linear", 1, 0)]
    if len(seen) > 2:
        tries += [("bent", 1, len(seen) - 2), ("quadratic", 2, 0)]
    if len(seen) > 3:
        tries.append(("quadratic", 2, len(seen) - 3))
    models = [_polynomial(seen[first:], degree) for _, degree, first in tries]
    missed = [abs(model(last[0]) - last[1]) / last[1] if last[1] else math.inf for model in models]
    best = max(noise.floor, SIMPLER * min(missed))
    # What was flat, and begins to rise at the last point, was not predicted by being near it.
    rise = abs(last[1] - seen[-1][1]) / last[1] if last[1] else 0.0
    most = min(noise.miss, max(noise.floor, OF_RISE * rise)) if rise > noise.flat else noise.miss
    for (shape, degree, first), miss in zip(tries, missed, strict=True):
        if miss <= min(best, most):
            share = max(noise.floor, miss)
            off = _growing(share * last[1], [x for x, _ in seen[-degree - 1 :]], last[0])
            return _Model(shape, _polynomial(points[first:], degree), off, share, points[first][0] if first else 0)
    return None


def _growing(missed: float, seen: Sequence[int], last: int) -> Callable[[float], float]:
    """What a model through some points was off by at the last one, elsewhere: a term of the next degree, which is zero
    where it was seen, grows like this."""
    there = math.prod(last - x for x in seen)
    return lambda value: missed * math.prod(value - x for x in seen) / there


def _polynomial(points: Sequence[tuple[int, float]], degree: int) -> Callable[[float], float]:
    """By least squares of relative errors, in units of the last point's value, in which all is near 1."""
    unit = points[-1][0]
    xs = np.array([x / unit for x, _ in points])
    ys = np.array([y for _, y in points])
    weights = 1 / np.maximum(ys, 1e-9 * max(ys.max(), 1.0))
    found, *_ = np.linalg.lstsq(np.vander(xs, degree + 1) * weights[:, None], ys * weights, rcond=None)
    return lambda value: float(np.polyval(found, value / unit))


def _around(centre: float, share: float) -> Range:
    centre = max(0.0, centre)
    return Range(low=centre / (1 + share), likely=centre, high=centre * (1 + share))


def _within_limit(high: float | None, limit: float) -> bool:
    return high is not None and high <= limit


def _most(holds: Callable[[int], bool], most: int) -> int:
    """The largest value from 1 to `most` up to which something holds; 0 for none."""
    if not holds(1):
        return 0
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
