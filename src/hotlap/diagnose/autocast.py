"""Products in float32 of a script that uses autocast, but not where its model runs."""

import msgspec

from hotlap.records.diagnosis import Finding
from hotlap.records.profile import Lines, place_in
from hotlap.records.run import Facts
from hotlap.records.trace import RankTrace

IN_FLOAT32 = ("no-tensor-cores", "fp32 ")
"""A finding of a trace, and how its title begins."""
HALF = frozenset({"bf16", "fp16"})


def outside_of_forward(finding: Finding, lines: Lines | None, facts: Facts | None, rank: RankTrace) -> Finding:
    """The finding with the line that turns autocast on, where the outermost forward of no model that is trained ran
    under one, and no module turns one on by itself."""
    id_, title = IN_FLOAT32
    if finding.id != id_ or not finding.title.startswith(title) or lines is None or facts is None:
        return finding
    trained = [root for root in facts.roots if root.optimized]
    flops = {half: sum(row.flops for row in rank.roofline if (row.dtype in HALF) is half) for half in (False, True)}
    if flops[True] > flops[False]:  # an earlier forward was another one
        return finding
    autocasts = [one for one in lines.autocasts if one[0] < len(lines.files)]
    if not autocasts or not trained or any(root.autocast for root in trained):
        return finding
    dearest = f" at line {finding.where.line} in {finding.where.function}" if finding.where else ""
    return msgspec.structs.replace(
        finding,
        title="the model's forward runs outside of autocast, in float32",
        where=place_in(lines.files, autocasts[0]),
        evidence=f"{finding.evidence.replace('; the largest', f'; the largest{dearest}', 1)}; the step enters autocast "
        "here, but calls its model before or after it",
        why="autocast acts only on what is called inside it, not on the backward or on tensors made before; "
        f"{finding.why}",
        instead="call the model under autocast, with the loss: `with torch.autocast(...): loss = criterion(model(x), "
        "y)`, the backward outside of it",
        named=True,
    )
