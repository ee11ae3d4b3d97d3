"""Python's cyclic collector, set up before the loop in which everything is trained."""

from hotlap.source.places import Places, Site
from hotlap.source.start import training_start

from ..edits import Changes, before
from ._base import NO_LOOP, CannotWrite, Edit, Rule, Settings, already, constant, importing, written

OWN = ("gc.freeze", "gc.disable", "gc.set_threshold", "gc.unfreeze")


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source sets the collector up itself, and where no one loop holds the training."""
    if not places.backwards:
        raise CannotWrite(NO_LOOP)
    threshold = int(settings["threshold"])
    own = places.calls_of(*OWN)
    if own and _same(own, threshold):
        return already(places, own)
    if own:
        raise CannotWrite("the source sets the collector up itself", own)
    start = training_start(places)
    source, place = start.scope.source, start.scope.source.place(start.loop)
    changes = Changes(places.project)
    texts = ["gc.collect()", "gc.freeze()", f"gc.set_threshold({threshold}, *gc.get_threshold()[1:])"]
    for node, change in importing(places, start.scope, place, "gc").items():
        if node is start.loop:  # the loop is the first statement of its file
            texts.insert(0, "import gc")
        else:
            changes.put(source.top, node, change)
    changes.put(start.scope, start.loop, before(source, *texts))
    return written(changes, [place])


def _same(own: list[Site], threshold: int) -> bool:
    """Whether these are the calls that this rule would write."""
    names = [site.source.code(site.call.func) for site in own]
    first = [site.call.args[0].value for site in own if site.call.args]
    return sorted(names) == ["gc.freeze", "gc.set_threshold"] and [constant(node) for node in first] == [threshold]


RULE = Rule("gc-pauses", edit, order=70)
