"""Python's cyclic collector, set up before the loop in which everything is trained."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.start import Start, training_start

from ..edits import Replacement, before, replace
from ._base import NO_LOOP, CannotWrite, Edit, Outcome, Rule, Settings, already, constant, importing, lines_of, touched

OWN = ("gc.freeze", "gc.disable", "gc.set_threshold", "gc.unfreeze")


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source sets the collector up itself, and where no one loop holds the training."""
    if not places.backwards:
        return CannotWrite(NO_LOOP)
    threshold = int(settings["threshold"])
    own = [Site(s.source, s, c) for s, c in places.names.calls if places.names.resolve(c.func, s) in OWN]
    lines = lines_of(own)
    if own and _same(own, threshold):
        return already(places, lines)
    if own:
        return CannotWrite("the source sets the collector up itself", lines)
    start = training_start(places)
    if isinstance(start, CannotWrite):
        return start
    changes = importing(start.source, start.scope, "gc", places.names)
    if changes is None:
        return CannotWrite("`gc` means something else here", (start.source.place(start.loop),))
    return _write(places, start, changes, threshold)


def _write(places: Places, start: Start, changes: dict[cst.CSTNode, Replacement], threshold: int) -> Edit:
    source = start.source
    texts = ["gc.collect()", "gc.freeze()", f"gc.set_threshold({threshold}, *gc.get_threshold()[1:])"]
    if start.loop in changes:  # the loop is the first statement of its file
        texts, changes = ["import gc", *texts], {}
    changes = {**changes, start.loop: before(source, *texts)}
    top = places.names.of(source).scopes[source.tree]
    return Edit(
        places.project.with_sources(replace(source, changes)),
        (source.place(start.loop),),
        touched(source, start.scope, top),
    )


def _same(own: list[Site], threshold: int) -> bool:
    """Whether these are the calls that this rule would write."""
    names = [site.source.tree.code_for_node(site.call.func) for site in own]
    first = [site.call.args[0].value for site in own if site.call.args]
    return sorted(names) == ["gc.freeze", "gc.set_threshold"] and [constant(node) for node in first] == [threshold]


RULE = Rule("gc-pauses", edit, order=70)
