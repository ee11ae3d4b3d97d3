"""float16 autocast around the model's call, and a GradScaler around the backward and the update."""

from dataclasses import dataclass, replace

import libcst as cst

from hotlap.source.places import Places, Site, lines_of
from hotlap.source.scopes import dotted
from hotlap.source.tree import Source

from ..edits import Changes, Replacement, after, before, expression, fresh
from ._autocast import autocast
from ._base import CannotWrite, Edit, Rule, Settings, already, at_the_top, written

STATE = "the scale is in no checkpoint: a run that is resumed begins with the first one again"
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grad_value")


@dataclass(frozen=True, eq=False)
class Update:
    """The backward, the clipping and the step of a loop, in one function."""

    backward: Site
    step: Site
    clip: Site | None


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses several backwards or optimizers, closures, whatever else reads gradients, and scalers of the source's."""
    if not places.cuda:
        raise CannotWrite("the recipe is not for a CUDA device", places.backwards[:3])
    own = places.calls_named("GradScaler")
    cast = autocast(places, "float16")
    if own:
        if cast.already:
            return already(places, own)
        raise CannotWrite("the source scales its loss itself", own)
    update = _update(places)
    source = cast.project.sources[update.backward.source.path]
    name = fresh(source, "scaler")
    there = replace(places, project=cast.project)
    made = at_the_top(there, f'{name} = torch.amp.GradScaler("cuda")', source)
    scaled = _scaled(replace(places, project=made.project), name)
    where = lines_of([*cast.where, update.backward, update.step])
    return replace(cast.then(made).then(scaled), where=where, notes=(*cast.notes, STATE))


def _scaled(places: Places, name: str) -> Edit:
    """The project with a scaler of this name at work."""
    update = _update(places)
    scope, source, optimizer = update.backward.scope, update.backward.source, _owner(update.step)
    changes = Changes(places.project)
    changes.put(scope, update.backward.call, _scaling(source, name))
    changes.put(scope, update.step.call, lambda _: expression(source, f"{name}.step({optimizer})"))
    changes.put(scope, _line(update.step), after(source, f"{name}.update()"))
    if update.clip is not None:
        changes.put(scope, _line(update.clip), before(source, f"{name}.unscale_({optimizer})"))
    return written(changes, ())


def _line(site: Site) -> cst.SimpleStatementLine:
    return cst.ensure_type(site.source.own_line(site.call), cst.SimpleStatementLine)


def _scaling(source: Source, name: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        func = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute)
        loss = source.code(func.value.with_changes(lpar=[], rpar=[]))
        return node.with_changes(func=expression(source, f"{name}.scale({loss}).backward"))

    return change


def _owner(site: Site) -> str:
    return dotted(cst.ensure_type(site.call.func, cst.Attribute).value) or ""


def _update(places: Places) -> Update:
    """The one backward with the one step behind it."""
    if len(places.backwards) != 1 or len(places.optimizers) != 1:
        why = "it takes one backward and one optimizer of torch.optim"
        raise CannotWrite(why, [*places.backwards, *places.optimizers])
    (backward,) = places.backwards
    if backward.call.args or not _alone(backward):
        raise CannotWrite("the backward is not a plain one on a line of its own", [backward])
    steps = [site for site in places.calls_named("step") if _of_optimizer(places, site)]
    if len(steps) != 1 or steps[0].scope is not backward.scope or steps[0].call.args or not _alone(steps[0]):
        why = "the step is not one call without a closure in the function of the backward"
        raise CannotWrite(why, steps or [backward])
    sources = places.project.sources.values()
    reads = [(source, source.parent(node), node) for source in sources for node in source.walk.uses.get("grad", ())]
    read = [s.place(above) for s, above, node in reads if isinstance(above, cst.Attribute) and above.attr is node]
    if read:  # `p.grad` and `torch.autograd.grad`
        raise CannotWrite("gradients are read here, which would be scaled", read)
    clips = places.calls_named(*CLIPS)
    if any(clip.scope is not backward.scope or not _alone(clip) for clip in clips):
        raise CannotWrite("gradients are clipped outside of the loop, or in a larger statement", clips)
    if len(clips) > 1:
        raise CannotWrite("gradients are clipped at several places", clips)
    return Update(backward, steps[0], clips[0] if clips else None)


def _alone(site: Site) -> bool:
    return site.source.own_line(site.call) is not None


def _of_optimizer(places: Places, site: Site) -> bool:
    """Whether it is a call of a method of the optimizer."""
    owner = site.call.func.value if isinstance(site.call.func, cst.Attribute) and dotted(site.call.func) else None
    made = places.names.origins(owner, site.scope) if owner is not None else []
    return any(at.node is places.optimizers[0].call for at in made)


RULE = Rule(edit, order=10)
