"""What the source asks of gradients that has to be known where something is compiled: `levers/_asked_gradients.py`."""

from dataclasses import replace as with_fields

import libcst as cst

from hotlap.source.places import CannotWrite, Places

from ._base import Edit, assigned, at_the_top

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
    if not kept or assigned(places, f".{DONATED}"):
        return edit
    text = f"torch._functorch.config.{DONATED} = False"
    written = at_the_top(Places(edit.project, places.facts, places.cuda), text, None, "torch._functorch.config")
    if isinstance(written, CannotWrite):
        return with_fields(edit, notes=(*edit.notes, NOT_KEPT))
    return with_fields(edit, project=written.project, touched=edit.touched | written.touched, notes=(*edit.notes, KEPT))


def differentiated_again(places: Places) -> CannotWrite | None:
    """Why what the source compiles would end its run, where it asks for gradients of gradients."""
    lines = tuple(scope.source.place(call) for scope, call in places.names.calls if _asked_again(call))
    return CannotWrite(AGAIN, lines, by_hand=False) if lines else None


def _asked_again(call: cst.Call) -> bool:
    """Whether a call asks for gradients that can be differentiated again: a backward by a plain True, see
    `_asked_gradients`."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
        return any(isinstance(value, cst.Name) and value.value == "True" for value in _given(call, "create_graph"))
    return _may_ask(call, "create_graph")


def _may_ask(call: cst.Call, name: str) -> bool:
    """Whether a call may ask for something of a backward."""
    given = _given(call, name)
    return any(not isinstance(value, cst.Name) or value.value not in {"False", "None"} for value in given)


def _given(call: cst.Call, name: str) -> list[cst.BaseExpression]:
    return [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name]
