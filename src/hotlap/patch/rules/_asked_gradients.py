"""What the source asks of gradients that has to be known where something is compiled: see the file of this name in
`levers/compiler/`."""

from dataclasses import replace

import libcst as cst

from hotlap.source.names import keyword_of
from hotlap.source.places import CannotTell, Places, Site
from hotlap.source.scopes import is_method_call

from ._base import CannotWrite, Edit, at_the_top

DONATED = "donated_buffer"
AGAIN = (
    "gradients are made that can be differentiated again (`create_graph`), which a compiled backward can't be; under "
    "the recipe such forwards run as they were written"
)
KEPT = "`donated_buffer = False`, as the source has a graph kept after its backward, which a compiled one may refuse"
NOT_KEPT = f"not written: {KEPT}: `torch._functorch.config.donated_buffer = False` before anything is compiled"


def with_graphs_kept(places: Places, edit: Edit) -> Edit:
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
    `_asked_gradients`."""
    if is_method_call(call, "backward"):
        value = keyword_of(call, "create_graph")
        return isinstance(value, cst.Name) and value.value == "True"
    return _may_ask(call, "create_graph")


def _may_ask(call: cst.Call, name: str) -> bool:
    """Whether a call may ask for something of a backward."""
    value = keyword_of(call, name)
    return value is not None and (not isinstance(value, cst.Name) or value.value not in {"False", "None"})
