"""An optimizer updates all rows of a large matrix, of which few had a gradient."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import OptimizerFacts

from ._base import Measured

MOSTLY = 0.5
CALL = "`F.embedding(index, table, sparse=True)` in place of `table[index]` or `index_select`"
REPLACES = ("optimizer",)


def find(measured: Measured) -> Finding | None:
    """Share: of the update what these rows are of it; beside a trace of the CPU what their dense gradients take too."""
    optimizers: tuple[OptimizerFacts, ...] = measured.facts.optimizers if measured.facts else ()
    one = max(optimizers, key=lambda optimizer: optimizer.idle, default=None)
    if one is None or one.idle < MOSTLY or len(one.matrix) != 2:
        return None
    updating = measured.took_ms("optimizer")
    rows, width = one.matrix
    roots = measured.facts.roots if measured.facts else ()
    bare = bool(roots) and all(root.embeds is False for root in roots)
    where = None if bare else call_of(measured.facts, ("Embedding", "EmbeddingBag"))
    return Finding(
        id="idle-rows",
        bound="bandwidth",
        share=measured.share("optimizer") * one.idle,
        cost_ms=updating * one.idle,
        title=f"{one.name} updates all rows of {'a table' if bare else 'an embedding'}, though few were used",
        where=where or measured.place_at(one.made) or measured.place_of(measured.root),
        evidence=f"{one.idle:.0%} of its numbers are in rows without a gradient; the largest matrix is {rows:,} x "
        f"{width:,}; the update takes {ms(updating)} a step",
        why="the gradient is dense, as large as the table, so the optimizer reads and writes all of the table and "
        "its averages",
        instead=f"{CALL if bare else '`nn.Embedding(..., sparse=True)`'} with torch.optim.SparseAdam for the "
        "tables (or SGD, Adagrad), and another optimizer for the rest; rows without a gradient then stay "
        "fixed, while Adam's averages still move them",
        named=True,
    )
