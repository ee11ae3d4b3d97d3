"""`torch.set_float32_matmul_precision("high")` after the imports."""

from collections.abc import Mapping

from hotlap.source.places import Places

from ._base import CannotWrite, Outcome, Rule, Settings, already, assigned, at_the_top, calls_named, constant

TEXT = 'torch.set_float32_matmul_precision("high")'


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source sets the precision of matrix products in any way: two ways of it don't mix."""
    calls = calls_named(places, "set_float32_matmul_precision")
    flags = assigned(places, ".allow_tf32", ".fp32_precision")
    top = [source.place(call) for source, call in calls if source.scope(call) is source.tree]
    if len(calls) == len(top) == 1 and not flags and constant(calls[0][1].args[0].value) == "high":
        return already(places, top)
    if calls or flags:
        lines = [source.place(node) for source, node in [*calls, *flags]]
        return CannotWrite("the source sets the precision of matrix products itself", tuple(lines))
    return at_the_top(places, TEXT)


RULE = Rule("tf32", edit)
