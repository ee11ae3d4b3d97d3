"""What the process's loop does, as the agent's instruments have seen it."""

from hotlap.records.phases import PHASES

from ..compiled import compiled_functions
from . import Facts, Script


def describe_process(script: Script) -> Facts:
    """Counts of forwards, backwards and updates, modes that were on, and what the instruments saw."""
    agent, steps, habits = script.agent, script.agent.steps, script.habits
    looked_at = max(1, script.looked_backwards)
    return {
        "samples_from": steps.samples_from, "in_flight": script.in_flight(steps.infers),
        "draining": agent.stopper.draining,
        "forwards": steps.forwards, "backwards": steps.backwards, "optimizer_steps": steps.optimizer_steps,
        "replayed": [PHASES[phase] for phase in sorted(steps.replayed)],
        "switches": habits.told(looked_at),
        "dispatch_modes": habits.modes("dispatch"), "function_modes": habits.modes("function"),
        "recomputed": script.recomputed,
        "retained": script.kept_graphs / looked_at, "forwards_each": habits.forwards / looked_at,
        "hung": script.hung, "wasted": agent.wasted.facts, "besides": agent.besides.facts(script.optimized),
        "unused": agent.unused.facts(),
        "host": agent.host.facts(),
        "compiled": compiled_functions(next((model.facts for model in script.roots.values()), None)),
    }  # fmt: skip
