"""Python outside data, model and optimizer: logging, metrics, batches made by hand, waiting for a value."""

import re
from collections.abc import Sequence

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import BesidesFacts

from ._base import EACH, Measured, counted

LEAST = 0.10
MOSTLY = 0.7
WITHOUT_A_PROFILE = "`hotlap run --profile` names the lines"
COLLECTS = "; `gc.collect(); gc.freeze()` after the first steps, so that the garbage collector has less to do"
STANDS_STILL = "the model waits meanwhile"
HOLDS = re.compile("operations of .* between the calls of its parts are in here")
BESIDES = "runs besides the training forward"
MOST = 0.5
"""Of the phase, that models run in."""
OF_THE_TRAINED = (
    "reuse what the training forward returned (`logits.detach()`); if it is only shown: every n steps; to act: "
    "for several environments at once"
)
OF_ANOTHER = (
    "its result for a sample never changes: compute it once, before the loop, and keep it; or only for rows "
    "that need it; less often; compiled, or in bfloat16"
)
FOLLOWS = "call it only for rows that need it; less often; compiled, or in bfloat16"
"""Of one whose weights the script may copy from those that are trained, as of a target network."""
COPIES = ("copy_", "lerp_", "load_state_dict", "update_parameters", "_foreach_copy_", "_foreach_lerp_")
OF_FUNCTIONS = "for functions that are no modules, hotlap sees only the backward"
OF_MODULES = "hotlap does not see modules called without gradients, as inside an autograd.Function"


def find(measured: Measured) -> Finding | None:
    """Share: the `other` phase, where it is not small."""
    share = measured.share("other")
    if share < LEAST or (measured.facts is not None and measured.facts.replayed) or _is_collector(measured):
        return None  # see own_graph.py, garbage_collection.py
    if models := _models(measured):
        return _besides(measured, share, models)
    own = measured.loader is None
    on_device = " and on the device" if measured.facts is None or measured.facts.device != "cpu" else ""
    bare = not measured.phases.forward and bool(measured.phases.backward)
    return Finding(
        id="host-code",
        bound="unknown",
        share=share,
        title="code of the loop outside data, model and optimizer",
        evidence=f"{ms(measured.phases.other or 0)} of host time a step"
        + (f", {ms(measured.gpu_phases.other or 0)} on the device's clock" if measured.gpu_phases else "")
        + ("; the loop has no DataLoader, so making batches is included" if own else ""),
        why=f"{_unseen(measured) if bare else _meanwhile(measured)}; {WITHOUT_A_PROFILE}",
        instead=f"log every n steps, compute metrics only then{on_device}, make batches ahead"
        + (COLLECTS if _collects(measured) else ""),
    )


def _models(measured: Measured) -> list[BesidesFacts]:
    """Models that run without gradients in most steps, longest first, where such forwards are most of this phase."""
    each = [one for one in measured.facts.besides if one.steps >= max(1, EACH * one.of)] if measured.facts else []
    took = sum(one.took_ms / one.of for one in each if one.of)
    return sorted(each, key=lambda one: -one.took_ms) if took >= MOST * (measured.phases.other or 0.0) else []


def _besides(measured: Measured, share: float, models: Sequence[BesidesFacts]) -> Finding:
    model, took = models[0], [one.took_ms / max(1, one.of) for one in models]
    of_another = FOLLOWS if call_of(measured.facts, COPIES) else OF_ANOTHER
    several = f", from {model.lines} lines, {model.part:.0%} of it from this one" if model.lines > 1 else ""
    rest = f"{ms(sum(took))} of the {ms(measured.phases.other or 0)}"
    how = "torch.inference_mode" if model.inference_mode else "torch.no_grad"
    return Finding(
        id="host-code",
        bound="unknown",
        share=share * min(1.0, sum(took) / (measured.phases.other or sum(took) or 1.0)),
        title=f"{model.name} {BESIDES}" if model.trained else f"{model.name}, which no optimizer updates, {BESIDES}",
        where=measured.place_at(model.place),
        evidence=f"without gradients, under {how}, {counted(round(model.calls / model.steps), 'time')} a step, "
        f"{ms(took[0])} on the host{several}; all such forwards {rest} "
        "outside of data, model and optimizer",
        why="training waits meanwhile, and no backward follows",
        instead=OF_THE_TRAINED if model.trained else of_another,
    )


def _meanwhile(measured: Measured) -> str:
    """What the model does."""
    owners = dict.fromkeys(one.owner for one in measured.facts.roots if one.owner) if measured.facts else {}
    return (
        f"operations of {' and '.join(owners)} between the calls of its parts are in here" if owners else STANDS_STILL
    )


def _unseen(measured: Measured) -> str:
    """What else is in here, where only backwards are seen of the model."""
    parts = "the forward is" if measured.phases.optimizer else "the forward and the update are"
    modules = measured.facts is not None and measured.facts.forwards
    return f"{parts} in here: {OF_MODULES if modules else OF_FUNCTIONS}"


def _is_collector(measured: Measured) -> bool:
    """Whether Python's collector is most of it."""
    host = measured.facts.host if measured.facts else None
    return host is not None and host.gc_ms > MOSTLY * (measured.phases.other or 0.0)


def _collects(measured: Measured) -> bool:
    """Whether Python's cyclic collector takes a notable part of the step."""
    host = measured.facts.host if measured.facts else None
    return host is not None and host.gc_ms >= 0.02 * measured.step_ms
