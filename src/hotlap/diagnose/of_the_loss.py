"""Lines of a loss that a script computes by itself: told as that, not as the model's, nor as code that could be left to
every n-th step. Read from the source, between the model's call and the backward."""

import ast
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place, with_findings
from hotlap.records.profile import Lines, place_in

from .source import called_in, calls_in, function_at, name_at, parsed, simple_at, statement_at

Given = ast.Assign | ast.AugAssign | ast.AnnAssign
AND_LOSS: Final = " and its loss"
WHY: Final = "it has a backward of its own; small operations take longer to issue than to compute"
INSTEAD: Final = (
    "the loss of all parts by one call, as `F.cross_entropy(torch.cat(scores), torch.cat(targets))` after the loop; "
    "`loss_of = torch.compile(loss_of)` for a function of many small operations"
)


def with_loss(diagnosis: Diagnosis, lines: Lines, called: Collection[Place]) -> Diagnosis:
    """The verdict with those named. called: lines that call the model."""
    at = lines.places.get("backward")
    if at is None or at[0] >= len(lines.files):
        return diagnosis
    backward = place_in(lines.files, at)
    return with_findings(diagnosis, [_told(one, backward, called) for one in diagnosis.findings])


def _told(finding: Finding, backward: Place, called: Collection[Place]) -> Finding:
    if finding.named or finding.where is None or finding.id not in {"compute", "host-code"}:
        return finding
    if not makes_loss(finding.where, backward, called):
        return finding
    if finding.id == "compute":
        return msgspec.structs.replace(finding, title=finding.title + AND_LOSS)
    return msgspec.structs.replace(finding, title="code of the loop that makes the loss", why=WHY, instead=INSTEAD)


def makes_loss(place: Place, backward: Place, called: Collection[Place]) -> bool:
    """Whether a line, or the function that it is in, makes of the model's output what the backward begins with, or what
    a function with the model's call returns."""
    name = (place.function or "").split(".")[-1]
    own = statement_at(place)
    for at in {function_at(one) or parsed(one.file): one for one in called}.values():
        if name and any(name_at(call.func) == name for call in _around(at)):
            return True
        for one in _between(at, backward, called):
            if one is own or (name and name in called_in(one) and own is not statement_at(at)):
                return True
    return False


def _around(at: Place) -> Iterator[ast.Call]:
    """Calls that are given what another call makes, in the statement that calls the model: `loss_of(model(x), y)`."""
    own = simple_at(at)
    for call in calls_in(own) if own is not None else ():
        if any(True for arg in call.args for _ in calls_in(arg)):
            yield call


def _between(at: Place, backward: Place, called: Collection[Place]) -> Iterator[ast.AST]:
    """Statements of the function around a call of the model that lead from its output to the loss."""
    scope = function_at(at) or parsed(at.file)
    if scope is None:
        return
    ends: list[ast.stmt] = [one for one in ast.walk(scope) if isinstance(one, ast.Return)]
    if scope is (function_at(backward) or parsed(backward.file)) and (own := statement_at(backward)) is not None:
        ends = [own]
    calls = [statement_at(one) for one in called]
    given = [one for one in ast.walk(scope) if isinstance(one, Given)]
    out = {name for one in given if one in calls for name in _targets(one)}
    lead = {name for end in ends for name in _read(end)}
    while True:
        after = [one for one in given if one not in calls and _read(one) & out]
        to = [one for one in given if one not in calls and _targets(one) & lead]
        more = (
            {name for one in after for name in _targets(one)} - out,
            {name for one in to for name in _read(one)} - lead,
        )
        if not any(more):
            break
        out, lead = out | more[0], lead | more[1]
    yield from (one for one in after if one in to)
    yield from (end for end in ends if _read(end) & out and end is not statement_at(backward))


def _targets(given: Given) -> set[str]:
    targets = given.targets if isinstance(given, ast.Assign) else [given.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _read(node: ast.AST) -> set[str]:
    value = getattr(node, "value", node)
    own = {node.target.id} if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) else set()
    return own | {one.id for one in ast.walk(value or ast.Pass()) if isinstance(one, ast.Name)}
