"""An optimizer has many parameter groups with the same settings, and updates one after another."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import OptimizerFacts

from ._base import Measured, counted
from .launch import waits

LEAST = 0.05
LEAST_GROUPS, LEAST_TIMES = 16, 2
"""Groups that would be gone, and times as many as those that differ."""


def find(measured: Measured) -> Finding | None:
    """Share: of the update that of the groups that would be gone, at most; on a device where that waits for the host
    alone."""
    optimizers: tuple[OptimizerFacts, ...] = measured.facts.optimizers if measured.facts else ()
    alike = [one for one in optimizers if one.builtin and one.settings and one.foreach is not False]
    alike = [one for one in alike if one.fused or one.foreach or (one.devices and "cpu" not in one.devices)]
    one = max(alike, key=lambda optimizer: optimizer.groups - optimizer.settings, default=None)
    if one is None or one.groups < max(LEAST_TIMES * one.settings, one.settings + LEAST_GROUPS):
        return None
    gone = 1 - one.settings / one.groups
    cost = gone * (waits(measured)["optimizer"] if measured.cuda else measured.took_ms("optimizer"))
    share = measured.share("optimizer") * cost / max(measured.took_ms("optimizer"), 1e-9)
    if share < LEAST:
        return None
    of = ", ".join(f'one["{name}"]' for name in one.differ)
    merged = (
        f"one group for each {' and '.join(one.differ)}: `merged = {{}}`, `for one in groups: "
        f'merged.setdefault(({of}), {{**one, "params": []}})["params"].extend(one["params"])`, '
        f"`{one.name}([*merged.values()])`"
    )
    return Finding(
        id="optimizer-groups",
        bound="launch",
        share=share,
        cost_ms=cost,
        title=f"{one.name} updates {one.groups} parameter groups one by one, of which {one.settings} differ",
        where=measured.place_at(one.made) or call_of(measured.facts, (one.name,)) or measured.place_at(one.stepped),
        evidence=f"{counted(one.tensors, 'tensor')} in {one.groups} groups; the update takes "
        f"{ms(measured.took_ms('optimizer'))} a step",
        why="it updates each group in a few calls, so a group of one tensor costs as many calls as a large one",
        instead=(merged if one.differ else f"one group: `{one.name}(model.parameters(), ...)`")
        + "; earlier optimizer checkpoints keep the old groups",
        named=True,
    )
