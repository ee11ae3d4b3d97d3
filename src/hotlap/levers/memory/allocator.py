"""Settings of torch's caching allocator of device memory, put in the environment before the command starts."""

import os
from typing import TYPE_CHECKING, Final

from .._base import Applies, Context, Lever, Setting, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment, MemoryFacts

VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The older name and the newer; torch of either age reads one of them."""
EXPANDABLE: Final = "expandable_segments:True"
ROUNDED: Final = "roundup_power2_divisions:8"
COLLECTED: Final = "garbage_collection_threshold:0.8"
SPLIT: Final = "max_split_size_mb:512"
ASYNC: Final = "backend:cudaMallocAsync"
CONFS: Final = (EXPANDABLE, ROUNDED, COLLECTED, f"{COLLECTED},{SPLIT}", SPLIT, ASYNC)
MALLOC_MS: Final = 1.0
"""Of one cudaMalloc in the loop with the wait that it may bring, as a bound; 0.1 to 1 ms are common."""
RETRY_MS: Final = 50.0
"""Of one retry, which waits for the device, frees what is cached and allocates anew, as a bound."""
FULL: Final = 0.9


class Allocator(Lever):
    """The variable PYTORCH_ALLOC_CONF; before torch 2.9 PYTORCH_CUDA_ALLOC_CONF."""

    name = "allocator"
    meaning = "settings of torch's device allocator that fragment less and call the driver less often"
    causes = {"allocator": 0, "memory": 2}
    risk = "exact"
    settings = {"conf": Setting(f"one of {' | '.join(CONFS)}", CONFS.__contains__)}
    needs_gpu = True
    saves_memory = True
    memory_order = 0
    frees = {"fragmentation": 1.0}
    takes = "next to no time"

    def applies(self, context: Context) -> Applies:
        memory = context.facts.memory
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; this allocator is for CUDA memory")
        own = own_setting(context.environment)
        if own:
            return Applies(False, f"{own} is set already")
        if memory is None:
            return Applies(False, "the allocator was not observed")
        evidence = _evidence(memory)
        if not evidence:
            return Applies(False, "no allocation in the loop reached the driver, and memory is not short")
        return Applies(True, evidence)

    def variants(self, context: Context) -> list[Settings]:
        memory = context.facts.memory
        confs = [COLLECTED, f"{COLLECTED},{SPLIT}"]
        if memory is not None and memory.late_mallocs and not memory.retries:
            confs = [ROUNDED, ASYNC]
        if any("graph" in name for name in context.active):
            # A lever captures CUDA graphs: they need addresses that stay, and have hung with expandable segments.
            confs = [conf for conf in confs if conf != ASYNC]
        elif context.facts.world == 1:
            confs = [EXPANDABLE, *confs]
        return [{"conf": conf} for conf in confs]

    def share(self, context: Context) -> float:
        memory = context.facts.memory
        if memory is None or memory.step <= memory.since:
            return 0.0
        steps = memory.step - memory.since
        lost_ms = (memory.late_mallocs * MALLOC_MS + memory.retries * RETRY_MS) / steps
        return min(0.9, lost_ms / max(lost_ms, context.diagnosis.step_ms, 1e-9))

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        own = own_setting(environment)
        return super().fits(environment, settings) or (f"{own} is already set" if own else None)

    def environment(self, settings: Settings) -> dict[str, str]:
        return dict.fromkeys(VARIABLES, str(settings["conf"]))

    def install(self, seams: "Seams", settings: Settings) -> None:
        from hotlap.agent.seams import Refused

        own = [os.environ[name] for name in VARIABLES if os.environ.get(name, settings["conf"]) != settings["conf"]]
        if own:  # set by the script itself before `import torch`; the allocator reads it at its first use
            os.environ.update(dict.fromkeys(VARIABLES, own[0]))
            raise Refused(f"the script already sets the allocator, to {own[0]}")

    def source(self, settings: Settings) -> str:
        return f"PYTORCH_ALLOC_CONF={settings['conf']} python ...  # before torch 2.9: PYTORCH_CUDA_ALLOC_CONF"


def own_setting(environment: "Environment") -> str | None:
    """The user's own variable, if one is set."""
    return next((name for name in VARIABLES if environment.variables.get(name)), None)


def _evidence(memory: "MemoryFacts") -> str:
    """Why the allocator's settings may matter; nothing where they can't."""
    steps = memory.step - memory.since
    if memory.retries:
        return f"{memory.retries} allocations failed at first, so the cache had to be freed"
    if memory.late_mallocs and steps:
        return f"{memory.late_mallocs} calls of cudaMalloc in {steps} steps after the first {memory.since}"
    if memory.total_bytes and memory.peak_reserved_bytes > FULL * memory.total_bytes:
        return f"{memory.peak_reserved_bytes / memory.total_bytes:.0%} of the device's memory is taken"
    return ""


LEVER = Allocator()
