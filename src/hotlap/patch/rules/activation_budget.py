"""`torch._functorch.config.activation_memory_budget` after the imports."""

from collections.abc import Mapping

from hotlap.source.places import Places

from ._base import CannotWrite, Outcome, Rule, Settings, already, assigned, at_the_top, calls_named, lines_of

NAME = "activation_memory_budget"


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where nothing is compiled, which alone heeds it, and where the source sets it itself."""
    budget = repr(settings["budget"])
    found = assigned(places, NAME)
    lines = tuple(source.place(node) for source, node in found)
    if found and all(source.tree.code_for_node(node.value) == budget for source, node in found):
        return already(places, lines)
    if found:
        return CannotWrite(f"the source sets it itself; the recipe has {budget}", lines)
    if not calls_named(places, "compile"):
        return CannotWrite(
            "nothing in the patched source compiles the model, which alone heeds it",
            lines_of(places.backwards[:3]),
        )
    text = f"torch._functorch.config.{NAME} = {budget}"
    return at_the_top(places, text, None, "torch._functorch.config")


RULE = Rule("activation-budget", edit, order=60)
