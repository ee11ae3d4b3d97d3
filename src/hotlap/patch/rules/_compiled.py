"""What the rules that compile share: a cross-entropy over many logits, compiled beside the model as the levers do it,
and what the source asks of gradients, which has to be known where something is compiled."""

from dataclasses import replace

import libcst as cst

from hotlap.source.names import keyword_of
from hotlap.source.places import CannotTell, Places, Site
from hotlap.source.scopes import Source, dotted, is_method_call

from ..edits import Changes, fresh
from ._base import CannotWrite, Edit, at_the_top, last_import, written

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
NAME = "compiled_cross_entropy"
LEAST_CLASSES = 4096
LEFT = "the lever also compiles cross-entropies over a million logits or more; the patch does not"
DONATED = "donated_buffer"
AGAIN = (
    "the source uses `create_graph`, which a compiled backward does not support; the recipe leaves such "
    "forwards uncompiled"
)
KEPT = "`donated_buffer = False`, as the source keeps graphs after their backward, which compiled code may refuse"
NOT_KEPT = f"not written: {KEPT}: `torch._functorch.config.donated_buffer = False` before anything is compiled"


def with_loss(places: Places, edit: Edit) -> Edit:
    """What compiles the model, and the loss beside it where that can be written; and what is saved for a backward is
    kept for another one, where the source asks for that."""
    edit = _with_graphs_kept(places, edit)
    compiled = _compiled(replace(places, project=edit.project))
    if compiled is None:
        return replace(edit, notes=(*edit.notes, LEFT)) if places.cuda else edit
    return edit.then(compiled)


def _compiled(places: Places) -> Edit | None:
    """The training loops' own calls of `F.cross_entropy` made calls of a compiled one. None where there are none, where
    it can't be named at the top of their file, or where no run says that they are of many classes: of few, a compiled
    one costs more than it saves."""
    roots = places.facts.roots if places.facts is not None and places.cuda else ()
    calls = [site for site in places.calls_of(CROSS_ENTROPY) if site.scope in places.loops]
    files, spelled = {site.source for site in calls}, {dotted(site.call.func) or "" for site in calls}
    many = any(root.classes >= LEAST_CLASSES for root in roots)
    if not many or len(files) != 1 or len(spelled) != 1 or places.assigned(".cross_entropy"):
        return None  # one that is assigned is the script's own
    source, text = files.pop(), spelled.pop()
    if not _known_at_the_top(places, source, text):
        return None
    name, changes = fresh(source, NAME), Changes(places.project)
    for site in calls:
        changes.put(site.source, {site.call.func: cst.Name(name)})
    edit = written(changes, ())
    try:
        there = replace(places, project=edit.project)
        return edit.then(at_the_top(there, f"{name} = torch.compile({text})", edit.project.sources[source.path]))
    except CannotTell:
        return None


def _known_at_the_top(places: Places, source: Source, text: str) -> bool:
    """Whether what a loop calls the function is imported, once, above where a statement at the top would stand."""
    bindings, last = source.top.names.get(text.partition(".")[0], []), last_import(source)
    if last is None or len(bindings) != 1:
        return False
    body = list(source.tree.body)
    known = places.names.resolve(cst.parse_expression(text), source.top) == CROSS_ENTROPY
    made = next((at for at, node in enumerate(body) if source.inside(node, bindings[0].statement)), len(body))
    return known and last in body[made:]


def _with_graphs_kept(places: Places, edit: Edit) -> Edit:
    """What is saved for a backward kept for another one, where the source asks for that."""
    kept = any(_may_ask(call, name) for _, call in places.names.calls for name in ("retain_graph", "create_graph"))
    if not kept or places.assigned(f".{DONATED}"):
        return edit
    text = f"torch._functorch.config.{DONATED} = False"
    try:
        written = at_the_top(replace(places, project=edit.project), text, None, "torch._functorch.config")
    except CannotTell:
        return replace(edit, notes=(*edit.notes, NOT_KEPT))
    return edit.then(replace(written, notes=(KEPT,)))


def refuse_differentiated_again(places: Places) -> None:
    """Raises CannotWrite where the source asks for gradients of gradients: what it compiles would end its run."""
    sites = [Site(scope, call) for scope, call in places.names.calls if _asked_again(call)]
    if sites:
        raise CannotWrite(AGAIN, sites, by_hand=False)


def _asked_again(call: cst.Call) -> bool:
    """Whether a call asks for gradients that can be differentiated again: a backward by a plain True, see
    `levers/compiler/_create_graph.py`."""
    if is_method_call(call, "backward"):
        value = keyword_of(call, "create_graph")
        return isinstance(value, cst.Name) and value.value == "True"
    return _may_ask(call, "create_graph")


def _may_ask(call: cst.Call, name: str) -> bool:
    """Whether a call may ask for something of a backward."""
    value = keyword_of(call, name)
    return value is not None and (not isinstance(value, cst.Name) or value.value not in {"False", "None"})
