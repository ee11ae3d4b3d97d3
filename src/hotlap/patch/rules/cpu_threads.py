"""`torch.set_num_threads(N)` after the imports; OMP_NUM_THREADS goes with the command."""

from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, already, at_the_top, constant


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source sets the number itself."""
    threads = int(settings["threads"])
    found = places.calls_named("set_num_threads")
    if found and all(site.call.args and constant(site.call.args[0].value) == threads for site in found):
        return already(places, found)
    if found:
        raise CannotWrite(f"the source already sets the number of threads; the recipe has {threads}", found)
    return at_the_top(places, f"torch.set_num_threads({threads})")


RULE = Rule(edit)
