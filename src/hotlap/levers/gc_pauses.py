"""Python's cyclic collector passes over what exists when the loop begins, and runs less often.

Each collection walks objects and holds the interpreter meanwhile. A dataset or vocabulary of millions of Python objects
is walked again and again though nothing of it is garbage. `gc.freeze` takes what exists out of the walk; a higher
threshold makes the rest rarer. Cycles that hold tensors are then freed later, which may cost memory.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, integer, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

THRESHOLD: Final = 50_000
"""Container objects made since the last collection, less those freed; Python's own is 700 (2000 from 3.13 on)."""
LEAST_SHARE: Final = 0.02


class GcPauses(Lever):
    name = "gc-pauses"
    meaning = "Python's cyclic collector passes over what existed before the loop and runs less often"
    risk = "exact"
    switchable = True

    def applies(self, context: Context) -> Applies:
        from hotlap.records.durations import ms

        host = context.facts.host
        if host is None:
            return Applies(False, "how long the collector runs was not measured")
        if not host.collections:
            return Applies(False, "the collector did not run in the loop")
        share = self.share(context)
        if share < LEAST_SHARE:
            return Applies(False, f"the collector takes {ms(host.gc_ms)} a step, {share:.1%}")
        return Applies(True, f"the collector takes {ms(host.gc_ms)} a step, {share:.0%}")

    def variants(self, context: Context) -> list[Settings]:
        return [{"threshold": THRESHOLD}]

    def share(self, context: Context) -> float:
        host = context.facts.host
        if host is None:
            return 0.0
        return min(0.95, host.gc_ms / max(1e-3, context.diagnosis.step_ms))

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return unknown(settings, ("threshold",)) or integer(settings, "threshold", 700, 10_000_000)

    def install(self, seams: "Seams", settings: Settings) -> None:
        import gc

        before: list[tuple[int, ...]] = []
        own = False

        def freeze(_: Any) -> None:
            nonlocal own
            if not before:
                before.append(gc.get_threshold())
                own = not gc.get_freeze_count()
                gc.collect()  # or garbage that exists now would never be freed
                gc.freeze()
                gc.set_threshold(settings["threshold"], *gc.get_threshold()[1:])

        def thaw(_: Any) -> None:
            if before:
                gc.set_threshold(*before.pop())
                if own:  # what the script has frozen itself can't be told apart
                    gc.unfreeze()

        seams.on_optimizer(freeze, thaw)

    def source(self, settings: Settings) -> str:
        return (
            "gc.collect()  # after the first step\n"
            "gc.freeze()\n"
            f"gc.set_threshold({settings['threshold']}, *gc.get_threshold()[1:])"
        )


LEVER = GcPauses()
