"""`torch._inductor.config.combo_kernels = True` after the imports."""

from collections.abc import Mapping

from ..places import Places
from ._base import CannotWrite, Outcome, Rule, Settings, already, assigned, at_the_top, calls_named, constant, lines_of

NAME = "combo_kernels"
TEXT = f"torch._inductor.config.{NAME} = True"


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where nothing is compiled, which alone heeds it, and where the source sets it itself."""
    found = assigned(places, NAME)
    lines = tuple(source.place(node) for source, node in found)
    if found and all(constant(node.value) is True and source.scope(node) is source.tree for source, node in found):
        return already(places, lines)
    if found:
        return CannotWrite("the source sets it itself", lines)
    if not calls_named(places, "compile"):
        return CannotWrite(
            "nothing in the patched source compiles the model, which alone heeds it",
            lines_of(places.backwards[:3]),
        )
    return at_the_top(places, TEXT, None, "torch._inductor.config")


RULE = Rule("combo-kernels", edit, order=60)
