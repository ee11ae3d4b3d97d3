"""Record of `hotlap diff` of two runs: what differs between what they ran in."""

import msgspec

from .diagnosis import Diagnosis


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What is not the same in both. None: not set, or not known."""

    what: str
    before: str | None
    after: str | None


class RunDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs. before, after: their folders. before_step, after_step: their diagnoses, None where a run has none.
    differs: machine, driver, versions, variables, source tree, command and levers, where they are not the same; of what
    only one of the two records know nothing is said, but in `unknown`."""

    before: str
    after: str
    before_step: Diagnosis | None
    after_step: Diagnosis | None
    differs: tuple[Difference, ...]
    unknown: tuple[str, ...] = ()
