"""The one guard around every hook: an internal error switches hotlap off in this process, and the job goes on."""

import traceback
from collections.abc import Callable
from typing import Any, Final


class Stop(SystemExit):
    """Ends a run after its steps. A SystemExit of code 0, so scripts that catch Exception don't see it."""


HOOKS: Final[list[str]] = []
"""Names of all hooks, in the order they were defined; tests inject an error into each."""
MOST_ALIKE: Final = 16
"""Problems of one place that are recorded: what fails in each epoch of a run of weeks would fill the disk."""
OFF: Final = -1
"""No thread's number."""


class Guard:
    """Calls hooks; after the first error of hotlap's own no hook runs any more."""

    __slots__ = ("fail_in", "live", "report", "told", "undo")

    def __init__(self, fail_in: str | None = None) -> None:
        self.live: int | None = None
        """The one thread whose hooks run, by its ident: what every hook asks first. None before one is known."""
        self.fail_in = fail_in
        self.report: Callable[[str, str, str, str | None], None] | None = None
        self.told: dict[str, int] = {}
        """How many problems of each place were."""
        self.undo: Callable[[], None] = lambda: None
        """Takes out what must not stay in when no hook runs any more."""

    @property
    def on(self) -> bool:
        """Whether hooks run at all."""
        return self.live != OFF

    @on.setter
    def on(self, on: bool) -> None:
        self.live = None if on else OFF

    def around(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook under the guard, made once for what runs in every step. Returns the hook's value, or None after an
        error (which switches hotlap off)."""
        if self.fail_in == name:
            hook = _failing(name)

        def guarded(*args: Any) -> Any:
            try:
                return hook(*args)
            except Exception as error:  # noqa: BLE001 - the agent's one guard: the user's job comes first
                self.failed(name, error)

        return guarded

    def injected(self, name: str, act: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """What is called in a hook that has its guard in itself: `act`, or an error where a test wants one."""
        return _failing(name) if self.fail_in == name else act

    def failed(self, name: str, error: Exception) -> None:
        """Switch hotlap off after an error in a hook."""
        self.on = False
        self.problem(name, error)
        self._safely(name, self.undo)

    def call(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        """Run a hook under the guard, as `around` makes it."""
        return self.around(name, hook)(*args)

    def spare(
        self, name: str, undo: Callable[[], None], act: Callable[..., Any], *args: Any, lever: str | None = None
    ) -> Any:
        """Run a part that hotlap can do without: an error in it ends that part alone, by `undo`. None after one.
        lever: whose part it is."""
        try:
            if self.fail_in == name:
                act = _failing(name)
            return act(*args)
        except Exception as error:  # noqa: BLE001 - as above
            self.problem(name, error, lever)
            self._safely(name, undo)
            return None

    def _safely(self, name: str, undo: Callable[[], None]) -> None:
        try:
            undo()
        except Exception as error:  # noqa: BLE001 - as above
            self.problem(name, error)

    def problem(self, name: str, error: Exception, lever: str | None = None) -> None:
        """Record a problem of hotlap's own, if it can be recorded at all; of one place the first MOST_ALIKE."""
        told = self.told[name] = self.told.get(name, 0) + 1
        if self.report is None or told > MOST_ALIKE:
            return
        trace = "".join(traceback.format_exception(error))[-4000:]
        try:
            self.report(name, f"{type(error).__name__}: {error}", trace, lever)
        except Exception:  # noqa: BLE001 - the last of the guards
            self.report = None  # a full disk, most likely: nothing more can be said from here


def _failing(name: str) -> Callable[..., Any]:
    """What stands in for a hook in which a test wants an error."""

    def fail(*_: Any) -> None:
        raise RuntimeError(f"injected into {name}")

    return fail


def hook(name: str) -> str:
    """Register a hook's name and return it."""
    HOOKS.append(name)
    return name
