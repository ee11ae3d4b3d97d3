"""Live progress of a tune: a status line on a terminal; elsewhere a plain line per result, and one a minute."""

import re
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from .console import Screen, clean, minutes, plain

PROVED: Final = re.compile(r"proved .*?([\d.]+×)")
FRAMES: Final = "|/-\\"
FRAMES_PER_S: Final = 1.0
"""Drawing takes some milliseconds of a core from the command that is timed."""
SILENT_S: Final = 60.0
"""A log is silent for so long at most, as far as anything happens."""


class Progress:
    """Shows what a tune does now and how much of its budget is left.

    budget_s: seconds in all, None where they are not known. clock: seconds, injected so that tests are deterministic.
    """

    def __init__(self, console: Console, budget_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._budget_s, self._clock = console, budget_s, clock
        self._began = self._said = clock()
        self._doing = self._steps = self._best = ""
        self._live: Live | None = None

    def __rich__(self) -> RenderableType:
        """The status line. What matters most stands first, because a narrow terminal cuts the end."""
        frame = FRAMES[int((self._clock() - self._began) * FRAMES_PER_S) % len(FRAMES)]
        return Screen(Text(f"{frame} {self._status()}", "cyan", no_wrap=True, overflow="ellipsis"))

    def _status(self) -> str:
        spent = self._clock() - self._began
        left = "" if self._budget_s is None else f", {minutes(self._budget_s - spent)} left"
        parts = [f"{minutes(spent)}{left}", self._best]
        return "  ".join(part for part in (*parts, self._doing, self._steps) if part)

    def start(self, title: str) -> None:
        """Say what begins, as a line that stays; the budget's clock runs from the construction."""
        self._doing, self._steps = clean(title), ""
        self._say(plain(title, "bold"))
        if self._live is None and _is_live(self._console):
            self._live = Live(
                self, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start(refresh=True)

    def trial(self, purpose: str, levers: str) -> None:
        """A trial begins."""
        self._doing, self._steps = clean(f"{purpose}: {levers}" if levers else purpose), ""
        self._to_log()

    def step(self, done: int, of: int | None = None) -> None:
        """Steps made in this trial; or, with how many there are at most, turns."""
        self._steps = f"{done} steps" if of is None else f"turn {done} of {of} at most"
        self._to_log()

    def result(self, text: str) -> None:
        """A result, as a line that stays. What is proved is shown in the status line too."""
        self._steps = ""
        if proof := PROVED.match(text):
            self._best = f"best: {proof[1]} proved"
        self._say(plain(text.rstrip()))

    def close(self) -> None:
        """Take the status line away; may be called twice."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _to_log(self) -> None:
        """What a terminal shows in its status line, where there is none and nothing was said for long."""
        if self._live is None and self._clock() - self._said >= SILENT_S:
            self._say(plain(f"at {self._status()}"))

    def _say(self, line: Text) -> None:
        """A line that stays, above the status line. A log gets it whole, whatever its width."""
        self._said = self._clock()
        self._console.print(Screen(line), soft_wrap=not _is_live(self._console))


def _is_live(console: Console) -> bool:
    """Whether a line can be redrawn. A log on which colours are forced is still a log."""
    return console.is_interactive and console.file.isatty()
