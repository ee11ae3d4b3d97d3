"""Record of `hotlap diff` of two runs: what differs between what they ran in."""

import msgspec

from .diagnosis import Diagnosis
from .memory import MemoryDiff


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What is not the same in both. what: the name of what differs. before, after: its value in this run, None: not
    set, or not known."""

    what: str
    before: str | None
    after: str | None


class RunDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs. before, after: folder of the run. before_step, after_step: the run's diagnosis, None where it has none.
    differs: machine, driver, versions, variables, source tree, command and levers, where they are not the same.
    unknown: what only one of the two records knows. memory: where both were run with `--memory`."""

    before: str
    after: str
    before_step: Diagnosis | None
    after_step: Diagnosis | None
    differs: tuple[Difference, ...]
    unknown: tuple[str, ...] = ()
    memory: MemoryDiff | None = None
