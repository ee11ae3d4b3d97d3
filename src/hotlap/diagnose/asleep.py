"""Lines at which the loop's thread sleeps or waits for something else than a core, as for the next frame of a game."""

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hotlap.records.diagnosis import Place
from hotlap.records.profile import Samples
from hotlap.records.run import HostFacts

from .causes import KNOWN, SLEEPS, Cause
from .samples import known_lines, place_of
from .source import calls_in, name_at, name_of, simple_at

CauseOf = Callable[..., Cause | None]

WAITS_TOO: Final = frozenset(
    {"checkpointing", "files", "logging", "manager-proxy", "network", "processes", "queries", "empty-cache", "sleeping"}
)
"""Causes that say more of what is waited for."""
TITLES: Final = frozenset({SLEEPS.title, *(one.cause.title for one in KNOWN if one.cause.id == "sleeping")})
SLEEPERS: Final = frozenset(
    {"sleep", "tick", "delay", "pause", "waitKey", "select", "poll", "recv", "accept", "readline", "input"}
)
PACKAGES: Final = ("asyncio.", "multiprocessing.", "queue.", "select", "socket.", "ssl.", "subprocess.", "threading.")
"""Functions that sleep or wait, by the ends of their names, and packages of those that the thread stands in."""
LEAST_MS: Final = 0.5
"""Of a step, that it stands at a line."""
OTHERS: Final = 0.25
"""Of the time, that the process's other threads ran or wanted to at most, where nobody knows what a line calls: else
it may wait for what they compute."""


def with_sleeps(cause_of: CauseOf, samples: Samples, phase: str, device: bool, host: HostFacts | None) -> CauseOf:
    """Causes of lines in a phase, with those at which the thread stands. device: it may be a device that it waits for,
    so that only calls are told that are known."""
    rows = [row for row in known_lines(samples.stood, samples.files) if row[0] == phase]
    stood = {(place_of(samples, row), row[4]): row[5] for row in rows}
    alone = not device and _alone(host)

    def cause(place: Place, inside: str) -> Cause | None:
        known = cause_of(place, inside=inside)
        if stood.get((place, inside), 0.0) < LEAST_MS * samples.steps or (known is not None and known.id in WAITS_TOO):
            return known
        called = _called(place)
        sleeper = next((one for one in called if name_at(one.func) in SLEEPERS), None)
        if sleeper is None and not inside.startswith(PACKAGES) and not (alone and called and "torch." not in inside):
            return known
        it = inside or name_of(sleeper or called[0])
        return replace(SLEEPS, instead=SLEEPS.instead.replace("{it}", it)) if it else known

    return cause


def _called(place: Place) -> list[ast.Call]:
    """Calls of the line's own statement, outermost first."""
    own = simple_at(place)
    return list(calls_in(own)) if own is not None else []


def _alone(host: HostFacts | None) -> bool:
    """Whether the thread that trains is the only one of its process that runs, or would."""
    if host is None or not host.took_ms or host.user_ms is None or host.waited_ms is None:
        return False
    running_ms = host.took_ms - host.stood_ms
    others = host.user_ms + host.system_ms - running_ms + (host.threads_waited_ms or 0.0) - host.waited_ms
    return others <= OTHERS * host.took_ms
