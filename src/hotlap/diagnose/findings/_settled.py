"""Not a finding: levers that what was seen of the script rules out, so that no finding names them."""

from collections.abc import Collection

from hotlap.records.run import Facts, OptimizerFacts

FAULTS = 256
"""Page faults a step from which host memory is said to go to the kernel and back."""
MOST_SHAPES = 8
"""Shapes of a forward's inputs up to which each gets a CUDA graph of its own."""
HAVE_FUSED_FORM = ("Adam", "AdamW", "SGD", "Adagrad")


def settled(facts: Facts | None, levers: Collection[str] = ()) -> frozenset[str]:
    """Names of levers whose change the script has made itself, or has nothing to make on, or that are in. Each lever's
    own `applies` decides in the end, and knows more reasons.

    levers: those that are in. What runs within them is not looked at, so attention is not offered beside them."""
    if facts is None:
        return frozenset(levers)
    root = facts.model
    cuda = facts.device == "cuda"
    single = any("float32" in one.dtypes or not one.dtypes for one in facts.roots)
    out = {
        "loader-workers": not facts.loaders,
        "tf32": not cuda or facts.tf32_matmul or not single,
        "cpu-threads": facts.world > 1 or (cuda and not makes_batches(facts)),
        "host-allocator": facts.host is None or facts.host.faults < FAULTS,
        "fused-optimizer": all(map(_fused, facts.optimizers)),
        "attention": root is None or root.compiled or not root.by_hand or bool(levers and root.softmax_ran is None),
        "allocator": not cuda,
        "graph-training": not cuda or not _records(facts),
        "graph-optimizer": not cuda or all(one.capturable for one in facts.optimizers),
    }
    if root is not None:
        out |= {
            "bf16-autocast": root.autocast is not None or not (cuda or facts.cpu_bf16) or not single,
            "compile": root.compiled,
            "channels-last": root.channels_last or not root.conv_input_4d,
        }
    return frozenset(levers) | {name for name, is_out in out.items() if is_out}


def makes_batches(facts: Facts) -> bool:
    """Whether the process that trains makes its batches itself, with several threads."""
    return facts.feeding is not None and not facts.feeding.workers and facts.threads > 1


def _records(facts: Facts) -> bool:
    """Whether one process trains a model that is not compiled, in few shapes that do not follow from values."""
    trained = [root for root in facts.roots if root.training and not root.compiled]
    return facts.world == 1 and any(root.shapes <= MOST_SHAPES and not root.shapes_by for root in trained)


def _fused(optimizer: OptimizerFacts) -> bool:
    """Whether it is fused, or torch has no fused form of it (levers/_fused.py)."""
    return bool(optimizer.fused or optimizer.sparse or not optimizer.builtin) or optimizer.name not in HAVE_FUSED_FORM
