"""One command by itself, in the background, until it ends or has to be ended."""

import contextlib
import math
import time
from typing import Final

from hotlap.launch.run import BackgroundRun
from hotlap.launch.supervise import Ended
from hotlap.runs.plan import RunPlan

from .watch import NONE, Listener, Refusal, Spare, Watch

POLL_S: Final = 0.05


def run_alone(plan: RunPlan, listener: Listener, timeout_s: float = math.inf, spare: Spare = NONE) -> Ended:
    """Run it, for so many seconds at most; the run is written. A lever that could not be put in ends it.

    spare: levers that may leave themselves out. Raises AgentError, CommandError, RecordError.
    """
    watch, command = Watch(plan.folder, listener, spare, None), BackgroundRun(plan)
    begun, late = time.monotonic(), False
    try:
        with contextlib.suppress(Refusal):  # `read_outcome` says why
            while not command.over() and not late:
                watch()
                time.sleep(POLL_S)
                late = time.monotonic() - begun >= timeout_s
    finally:
        _, ended = command.end(late)
    return ended
