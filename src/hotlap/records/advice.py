"""What to try first: the decision table as data, and what it answers. The report page evaluates the same table."""

import msgspec

from .diagnosis import Bound, Place


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the records here: what says nothing is left out of the JSON."""


# the table


class Measure(Record, frozen=True, kw_only=True):
    """Something to know of a run, a share from 0 to 1. main: asked first, of anyone. within: the measure that says the
    same less exactly; another answer there takes this one's place. adds_up: those within it are all of it, in a run.
    question: as a person is asked; help: what counts, and where to read it off."""

    name: str
    label: str
    main: bool = False
    within: str = ""
    adds_up: bool = False
    question: str
    help: str


class Condition(Record, frozen=True, kw_only=True):
    """Holds where the measure is known and above, or at most, a value. measure `share` is the row's own. unknown: holds
    where the measure is not known."""

    measure: str
    above: float | None = None
    at_most: float | None = None
    unknown: bool = False


class ShareOf(Record, frozen=True, kw_only=True):
    """A share of the step: the measure `of` (`step` is 1), less others, not below 0, times others. What is not known
    of the others changes nothing; where `of` is not known, neither is the share."""

    of: str
    less: tuple[str, ...] = ()
    times: tuple[str, ...] = ()


class Row(Record, frozen=True, kw_only=True):
    """A thing to try. conditions (`if` in JSON): all have to hold. share: of the step that it could win at most, None
    where that can't be said. bound: the diagnosis's word for it. removable: the time may go away whole, as waits do and
    arithmetic does not. kind: which of the three ways to be faster this is, "" for none. because: why, with `{measure}`
    and `{share}` in percent; do: what, in order; verify: how to know that it helped, after what tune says of levers."""

    id: str
    bound: Bound
    title: str
    conditions: tuple[Condition, ...] = msgspec.field(name="if", default=())
    share: ShareOf | None = None
    removable: bool = False
    kind: str = ""
    because: str
    do: tuple[str, ...]
    levers: tuple[str, ...] = ()
    verify: str


class Table(Record, frozen=True, kw_only=True):
    """The decision flow. rows: those that hold are the answer, the largest share first; equal ones, and at the end
    those without a share, in the table's order. otherwise: where none holds, the first of these that does."""

    version: int = 1
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    otherwise: tuple[Row, ...]


# the answer


class Suggestion(Record, frozen=True, kw_only=True):
    """A row that holds, or a finding that no row is about. id: the row's name, or the finding's. kind: which of the
    three ways to be faster this is, "" for none. because: why to try it. do: what to do, in order. verify: how to know
    that it helped. share: of the step (0 to 1), that it could win at most; at_most: the speed-up if all of it went away
    (1 / (1 - share)), None where it can't. evidence, where: of the run's finding, where there is a run; then bound and
    levers are that finding's too. bound: what the step waits for."""

    id: str
    bound: Bound
    title: str
    kind: str = ""
    because: str
    do: tuple[str, ...]
    levers: tuple[str, ...] = ()
    verify: str
    share: float | None = None
    at_most: float | None = None
    evidence: str = ""
    where: Place | None = None


class Advice(Record, frozen=True, kw_only=True):
    """`hotlap advise --json`. What has nothing to say is left out.

    source: the run or trace that the measures are from, "" for answers alone. bound: of the run's diagnosis. step_ms:
    ms of its step. measures: what the advice rests on, by name, 0 to 1. given: names of the measures that a person
    gave. measured: what the run says of measures that answers changed or took out. suggestions: what to try, the first
    first. unknown: what could not be told, in words.
    """

    version: int = 1
    source: str = ""
    bound: Bound | None = None
    step_ms: float | None = None
    device: str = ""
    measures: dict[str, float] = {}
    given: tuple[str, ...] = ()
    measured: dict[str, float] = {}
    suggestions: tuple[Suggestion, ...] = ()
    unknown: tuple[str, ...] = ()


class AdvicePanel(Record, frozen=True, kw_only=True):
    """What the panel of the report page is made from: the table, and what a run answered."""

    table: Table
    advice: Advice = Advice()
