"""Has the traceback of an error of the script's be what it is without hotlap.

A wrapper hands on an error that passes it by `except BaseException as error: unseen(error); raise`, which costs nothing
where there is none, and adds no line again. The outermost function of hotlap's does that, for all that it called.
"""

import dis
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

AGENT = os.path.dirname(__file__) + os.sep


def unseen(error: BaseException) -> None:
    """Take the lines of the agent's off the top of an error's traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(AGENT):
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)  # an error of the script's may let nothing be set


class Shown:
    """The hook that shows an uncaught error (`sys.excepthook`), after `before`: what the script has there.

    A function of torch's that calls one of two things calls the second where hotlap has put something in the place of
    the first; in the traceback it is to stand where it would. That line can be changed only once the error has left the
    function. code: the function's; taken: whether a frame of it took the way of hotlap's.
    """

    def __init__(self, code: CodeType, name: str, taken: Callable[[FrameType], bool]) -> None:
        self.code, self.taken = code, taken
        self.before: Callable[..., Any] | None = None
        self._inside = False
        found = [one for one in dis.get_instructions(code) if one.argval == name or one.opname.startswith("CALL")]
        at = next((at for at, one in enumerate(found) if one.argval == name), len(found))
        self.call = next((one for one in found[at + 1 :]), None)
        """Of what would be called."""

    def show(self) -> None:
        """An error leaves such a frame: be the hook from the first one on, unless the script puts another there."""
        if self.before is None:
            self.before = sys.excepthook
            sys.excepthook = self

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._inside:  # a hook of the script's that was put there anew, and calls the one that it found
            sys.__excepthook__(kind, error, trace)
            return
        self._inside = True
        waiting: list[BaseException | None] = [error]
        seen: set[int] = set()
        while waiting:
            one = waiting.pop()
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                BaseException.with_traceback(one, self._moved(one.__traceback__))
                waiting += [one.__cause__, one.__context__]
        try:
            (self.before or sys.__excepthook__)(kind, error, error.__traceback__)
        finally:
            self._inside = False

    def _moved(self, trace: TracebackType | None) -> TracebackType | None:
        """A traceback as it would be."""
        above, first = None, trace
        while trace is not None:
            if trace.tb_frame.f_code is self.code and self.taken(trace.tb_frame):
                trace = self._at_the_call(trace)
                if above is None:
                    first = trace
                else:
                    above.tb_next = trace
            above, trace = trace, trace.tb_next
        return first

    def _at_the_call(self, trace: TracebackType) -> TracebackType:
        call = self.call
        line = None if call is None or call.positions is None else call.positions.lineno
        if call is None or line is None:
            return trace
        return TracebackType(trace.tb_next, trace.tb_frame, call.offset, line)
