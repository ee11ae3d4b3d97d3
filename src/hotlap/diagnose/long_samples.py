"""The line and the cause of steps that take much longer than the others, from samples of these."""

import ast
from collections import defaultdict
from collections.abc import Collection

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place, bound_of
from hotlap.records.profile import LongSamples, Samples, UserFrame, place_in

from .batches import asking, trained
from .causes import ALL_ITEMS
from .findings.host_code import WITHOUT_A_PROFILE
from .samples import LEAST_LOOKS, MOSTLY_THERE, known_paths
from .source import COMPREHENSIONS, loops_at, statement_at
from .statements import cause_at


def with_long_steps(
    diagnosis: Diagnosis, samples: LongSamples, others: Samples | None = None, called: Collection[Place] = ()
) -> Diagnosis:
    """The verdict with the line and the cause of steps that take much longer than the others: from the loop on, the
    innermost line that most of their time is under and that other steps do not come to; where they come to all of
    these, the innermost. others: of steps that are not long; called: lines that call the model."""
    own = [row for row in known_paths(samples.lines, samples.files) if row[0] == "other"]
    own = [row for row in own if row[1]]  # else the loop is over, and Python ends
    total = sum(row[3] for row in own)
    at: UserFrame | None = None
    share, inside, depth, rare, last = 0.0, "", 0, False, False
    while own := [row for row in own if len(row[1]) > depth]:
        took: defaultdict[UserFrame, float] = defaultdict(float)
        for row in own:
            took[row[1][depth]] += row[3]
        most = max(took, key=lambda one: took[one])
        if took[most] < MOSTLY_THERE * total:  # several lines of a function, say
            most = max(took, key=lambda one: (sum(took[two] for two in took if two[::2] == one[::2]), took[one]))
            own = [row for row in own if row[1][depth][::2] == most[::2]]
        else:
            own = [row for row in own if row[1][depth] == most]
        if sum(row[3] for row in own) < MOSTLY_THERE * total or (rare and most in samples.usual):
            break
        depth += 1
        if took[most] >= MOSTLY_THERE * total:
            at, share, rare = most, took[most] / total, most not in samples.usual
            last = all(len(row[1]) == depth for row in own)
            inside = max(own, key=lambda row: row[3])[2] if last else ""
    if samples.looks < LEAST_LOOKS or at is None or not (rare or last):
        return diagnosis
    where = place_in(samples.files, at)
    cause = cause_at(where, diagnosis.device != "cpu", diagnosis.ranks, inside)
    for place, took_ms in _makes_all_items(samples).items():
        if took_ms >= MOSTLY_THERE * total:
            where, cause, share = place, ALL_ITEMS, took_ms / total
    waiting = asking(samples.lines, samples.files, trained(others, called)) if others is not None else ()
    asks = sum(row[3] for row in waiting) >= MOSTLY_THERE * total

    def told(one: Finding) -> Finding:
        if one.id != "long-steps":
            return one
        why = one.why.replace(f"; {WITHOUT_A_PROFILE}", "")
        alone = ", which other samples do not reach" if rare else ""
        evidence = f"{one.evidence}; {share:.0%} of their own code's time is spent under this line{alone}"
        found = msgspec.structs.replace(
            one, where=where, why=why, evidence=evidence, bound="input" if asks else one.bound
        )
        if cause is None:
            return found
        bound = found.bound if cause.bound == "unknown" else cause.bound
        return msgspec.structs.replace(cause.named(found), title=f"{one.title}: {cause.title}", bound=bound)

    findings = tuple(map(told, diagnosis.findings))
    return msgspec.structs.replace(diagnosis, findings=findings, bound=bound_of(findings))


def _makes_all_items(samples: LongSamples) -> dict[Place, float]:
    """Lines of an `__iter__` that make items in a loop of theirs, none of which they hand over; ms."""
    took: defaultdict[Place, float] = defaultdict(float)
    for _, path, _, took_ms in known_paths(samples.lines, samples.files):
        names = [function.split(".")[-1] for _, _, function in path]
        if "__iter__" not in names or "__getitem__" not in names[names.index("__iter__") :]:
            continue
        place = place_in(samples.files, path[names.index("__iter__")])
        own = statement_at(place)
        made = [one for one in ast.walk(own or ast.Pass()) if isinstance(one, COMPREHENSIONS)]
        around = [*made, *loops_at(place)]
        if around and not any(isinstance(one, (ast.Yield, ast.YieldFrom)) for each in around for one in ast.walk(each)):
            took[place] += took_ms
    return took
