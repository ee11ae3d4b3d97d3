"""`torch.set_num_threads(N)` after the imports; OMP_NUM_THREADS goes with the command."""

from collections.abc import Mapping

from hotlap.source.places import Places

from ._base import CannotWrite, Outcome, Rule, Settings, already, at_the_top, calls_named, constant


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source sets the number itself."""
    threads = int(settings["threads"])
    found = calls_named(places, "set_num_threads")
    lines = tuple(source.place(call) for source, call in found)
    if found and all(call.args and constant(call.args[0].value) == threads for _, call in found):
        return already(places, lines)
    if found:
        return CannotWrite(f"the source sets the number of threads itself; the recipe has {threads}", lines)
    return at_the_top(places, f"torch.set_num_threads({threads})")


RULE = Rule("cpu-threads", edit)
