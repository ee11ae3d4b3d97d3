"""float16 autocast around the model's call, and a GradScaler around the backward and the update."""

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import Places, Site
from hotlap.source.project import Project
from hotlap.source.scopes import dotted
from hotlap.source.tree import Source

from ..edits import Replacement, after, before, expression, fresh, own_line, replace
from ._autocast import autocast
from ._base import CannotWrite, Edit, Outcome, Rule, Settings, already, at_the_top, calls_named, lines_of, touched

STATE = "the scale is in no checkpoint: a run that is resumed begins with the first one again"
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grad_value")


@dataclass(frozen=True, eq=False)
class Update:
    """The backward, the clipping and the step of a loop, in one function."""

    backward: Site
    step: Site
    clip: Site | None


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses several backwards or optimizers, closures, whatever else reads gradients, and scalers of the source's."""
    if not places.cuda:
        return CannotWrite("the recipe is not for a CUDA device", lines_of(places.backwards[:3]))
    own = tuple(source.place(call) for source, call in calls_named(places, "GradScaler"))
    cast = autocast(places, "float16")
    if isinstance(cast, CannotWrite):
        return cast
    if own:
        return already(places, own) if cast.already else CannotWrite("the source scales its loss itself", own)
    update = _update(places)
    if isinstance(update, CannotWrite):
        return update
    source = cast.project.sources[update.backward.source.path]
    name = fresh(source, "scaler")
    made = at_the_top(Places(cast.project, places.facts, places.cuda), f'{name} = torch.amp.GradScaler("cuda")', source)
    if isinstance(made, CannotWrite):
        return made
    scaled = _scaled(Places(made.project, places.facts, places.cuda), name)
    if isinstance(scaled, CannotWrite):
        return scaled
    return Edit(
        scaled, tuple(dict.fromkeys([*cast.where, update.backward.place, update.step.place])),
        cast.touched | made.touched | touched(update.backward.source, update.backward.scope),
        notes=(*cast.notes, STATE),
    )  # fmt: skip


def _scaled(places: Places, name: str) -> Project | CannotWrite:
    """The project with a scaler of this name at work."""
    update = _update(places)
    if isinstance(update, CannotWrite):
        return update
    source, optimizer = update.backward.source, _owner(update.step)
    step, backward = own_line(source, update.step.call), update.backward.call
    assert step is not None
    changes: dict[cst.CSTNode, Replacement] = {
        backward: _scaling(source, name),
        update.step.call: lambda _: expression(source, f"{name}.step({optimizer})"),
        step: after(source, f"{name}.update()"),
    }
    if update.clip is not None:
        line = own_line(source, update.clip.call)
        assert line is not None
        changes[line] = before(source, f"{name}.unscale_({optimizer})")
    return places.project.with_sources(replace(source, changes))


def _scaling(source: Source, name: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        assert isinstance(node.func, cst.Attribute)
        loss = source.tree.code_for_node(node.func.value.with_changes(lpar=[], rpar=[]))
        return node.with_changes(func=expression(source, f"{name}.scale({loss}).backward"))

    return change


def _owner(site: Site) -> str:
    assert isinstance(site.call.func, cst.Attribute)
    return dotted(site.call.func.value) or ""


def _update(places: Places) -> Update | CannotWrite:
    """The one backward with the one step behind it."""
    if len(places.backwards) != 1 or len(places.optimizers) != 1:
        lines = lines_of([*places.backwards, *places.optimizers])
        return CannotWrite("it takes one backward and one optimizer of torch.optim", lines)
    backward = places.backwards[0]
    if backward.call.args or own_line(backward.source, backward.call) is None:
        return CannotWrite("the backward is not a plain one on a line of its own", (backward.place,))
    steps = _of_optimizer(places, "step")
    alone = len(steps) == 1 and steps[0].scope is backward.scope and not steps[0].call.args
    if not alone or own_line(steps[0].source, steps[0].call) is None:
        lines = lines_of(steps or [backward])
        return CannotWrite("the step is not one call without a closure in the function of the backward", lines)
    reads = _reads_of_gradients(places)
    if reads:
        return CannotWrite("gradients are read here, which would be scaled", tuple(reads))
    clips = [Site(s, places.names.scope(s, c), c) for s, c in calls_named(places, *CLIPS)]
    if any(clip.scope is not backward.scope or own_line(clip.source, clip.call) is None for clip in clips):
        return CannotWrite("gradients are clipped outside of the loop, or in a larger statement", lines_of(clips))
    if len(clips) > 1:
        return CannotWrite("gradients are clipped at several places", lines_of(clips))
    return Update(backward, steps[0], clips[0] if clips else None)


def _of_optimizer(places: Places, method: str) -> list[Site]:
    """Calls of a method of the optimizer."""
    found = []
    made = places.optimizers[0].call
    for source, call in calls_named(places, method):
        scope = places.names.scope(source, call)
        owner = call.func.value if isinstance(call.func, cst.Attribute) and dotted(call.func) else None
        if owner is not None and any(at.node is made for at in places.names.origins(owner, scope)):
            found.append(Site(source, scope, call))
    return found


def _reads_of_gradients(places: Places) -> list[Line]:
    """`p.grad` and `torch.autograd.grad`."""
    found = []
    for source in places.project.sources.values():
        for node in source.walk.uses.get("grad", ()):
            parent = source.parent(node)
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                found.append(source.place(parent))
    return found


RULE = Rule("fp16-scaling", edit, order=10)
