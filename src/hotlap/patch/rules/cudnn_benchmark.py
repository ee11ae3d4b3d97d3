"""`torch.backends.cudnn.benchmark = True` after the imports."""

from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, already, at_the_top, constant

TEXT = "torch.backends.cudnn.benchmark = True"


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source sets it itself."""
    found = places.assigned("cudnn.benchmark")
    lines = tuple(source.place(node) for source, node in found)
    if found and all(constant(node.value) is True and source.scope(node) is source.top for source, node in found):
        return already(places, lines)
    if found:
        raise CannotWrite("the source sets it itself, on conditions of its own", lines)
    return at_the_top(places, TEXT)


RULE = Rule("cudnn-benchmark", edit)
