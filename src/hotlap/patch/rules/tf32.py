"""`torch.set_float32_matmul_precision("high")` after the imports."""

from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, already, at_the_top, constant

TEXT = 'torch.set_float32_matmul_precision("high")'


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source sets the precision of matrix products in any way: two ways of it don't mix."""
    calls = places.calls_named("set_float32_matmul_precision")
    flags = places.assigned(".allow_tf32", ".fp32_precision")
    top = [site for site in calls if site.scope is site.source.top]
    if len(calls) == len(top) == 1 and not flags and constant(top[0].call.args[0].value) == "high":
        return already(places, top)
    if calls or flags:
        lines = [*(site.place for site in calls), *(source.place(node) for source, node in flags)]
        raise CannotWrite("the source already sets the precision of matrix products", lines)
    return at_the_top(places, TEXT)


RULE = Rule(edit)
