"""A cross-entropy over many logits, compiled beside the model: what the levers that compile do to one outside of it."""

from dataclasses import replace as with_fields

import libcst as cst

from hotlap.source.places import CannotWrite, Places
from hotlap.source.project import Project
from hotlap.source.scopes import Scope, dotted
from hotlap.source.tree import Source

from ..edits import Replacement, fresh, inside, replace
from ._asked_gradients import with_graphs_kept
from ._base import Edit, Touched, assigned, at_the_top, last_import, touched

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
NAME = "compiled_cross_entropy"
LEAST_CLASSES = 4096
LEFT = "the lever also compiles a cross-entropy over a million logits or more; the patch does not"


def with_loss(places: Places, edit: Edit) -> Edit:
    """What compiles the model, and the loss beside it where that can be written; and what is saved for a backward is
    kept for another one, where the source asks for that."""
    edit = with_graphs_kept(places, edit)
    written = _written(Places(edit.project, places.facts, places.cuda))
    if written is None:
        return with_fields(edit, notes=(*edit.notes, LEFT)) if places.cuda else edit
    project, changed = written
    return with_fields(edit, project=project, touched=edit.touched | changed)


def _written(places: Places) -> tuple[Project, frozenset[Touched]] | None:
    """The project in which the training loops' own calls of `F.cross_entropy` are of a compiled one. None where there
    are none, where it can't be named at the top of their file, or where no run says that they are of many classes: of
    few, a compiled one costs more than it saves."""
    facts = places.facts
    if not places.cuda or facts is None or not any(root.classes >= LEAST_CLASSES for root in facts.roots):
        return None
    calls = _calls(places)
    sources = {scope.source for scope, _ in calls}
    if len(sources) != 1:
        return None
    source = sources.pop()
    spelled = {dotted(call.func) or "" for _, call in calls}
    if len(spelled) != 1 or not _known_at_the_top(places, source, text := spelled.pop()):
        return None
    name = fresh(source, NAME)
    changes: dict[cst.CSTNode, Replacement] = {call: _renamed(name) for _, call in calls}
    project = places.project.with_sources(replace(source, changes))
    written = at_the_top(
        Places(project, facts, places.cuda), f"{name} = torch.compile({text})", project.sources[source.path]
    )
    if isinstance(written, CannotWrite):
        return None
    return written.project, written.touched | touched(source, *(scope for scope, _ in calls))


def _calls(places: Places) -> list[tuple[Scope, cst.Call]]:
    """Of the loss, in training loops; none where the script puts its own in its place."""
    inside_loops = [(scope, call) for scope, call in places.names.calls if scope in places.loops]
    if assigned(places, ".cross_entropy"):
        return []
    return [(scope, call) for scope, call in inside_loops if places.names.resolve(call.func, scope) == CROSS_ENTROPY]


def _known_at_the_top(places: Places, source: Source, text: str) -> bool:
    """Whether what a loop calls the function is imported, once, above where a statement at the top would stand."""
    top, last = places.names.of(source).scopes[source.tree], last_import(source)
    root = text.partition(".")[0]
    bindings = top.names.get(root, [])
    body = list(source.tree.body)
    if last is None or len(bindings) != 1 or places.names.resolve(cst.parse_expression(text), top) != CROSS_ENTROPY:
        return False
    statement = bindings[0].statement
    made = next((at for at, node in enumerate(body) if node is statement or inside(source, node, statement)), len(body))
    return last in body[made:]


def _renamed(name: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        return node.with_changes(func=cst.Name(name))

    return change
