"""`torch._functorch.config.activation_memory_budget` after the imports."""

from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, already, at_the_top

NAME = "activation_memory_budget"


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where nothing is compiled, which alone heeds it, and where the source sets it itself."""
    budget = repr(settings["budget"])
    found = places.assigned(NAME)
    lines = [source.place(node) for source, node in found]
    if found and all(source.code(node.value) == budget for source, node in found):
        return already(places, lines)
    if found:
        raise CannotWrite(f"the source already sets it; the recipe has {budget}", lines)
    if not places.calls_named("compile"):
        why = "nothing in the patched source compiles the model, and only compiled models use it"
        raise CannotWrite(why, places.backwards[:3])
    return at_the_top(places, f"torch._functorch.config.{NAME} = {budget}", None, "torch._functorch.config")


RULE = Rule(edit, order=60)
