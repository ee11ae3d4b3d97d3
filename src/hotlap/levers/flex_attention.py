"""Attention that the lever `attention` made one kernel, by a constant mask that leaves many blocks empty, through
FlexAttention, which computes the others only.

A sliding window, documents of fixed length, a prefix: such masks are boolean (or fills, or a bias of minus infinity),
the same for all batches and heads, and known when the graph is captured. A causal mask is not among them, since the
flash kernel knows it. Nor is attention with dropout, with lengths that vary, inside of a checkpoint, or with rows that
attend to nothing. Where the script changes such a mask later, the graph is captured anew and the mask is passed as it
is, as `attention` does.
"""

from typing import TYPE_CHECKING, Any, Final

from . import _compile_cache
from ._base import WATCHES, Applies, Context, Lever, Settings, no_gpu
from .attention import LEVER as ATTENTION
from .attention import PATIENCE

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

LEAST_EMPTY: Final = 0.4
"""With fewer blocks empty, kernels written for a dense mask or for a causal one are as fast."""
SHARE: Final = 0.6
"""Of forward and backward, at most, times the share of blocks that are empty."""


class FlexAttention(Lever):
    name = "flex-attention"
    meaning = "fused attention by a constant mask with many empty blocks skips these (FlexAttention)"
    risk = "numeric"
    tolerance = 0.005
    stage = "compiler"
    compiles = True
    costs_s = 20.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, where FlexAttention does not train")
        if facts.capability is None or facts.capability < (8, 0):
            return Applies(False, f"{facts.device_name or 'the device'} is older than FlexAttention's kernels")
        if ATTENTION.name not in context.active:
            return Applies(False, "the lever attention, whose masks it looks at, is not in")
        empty = max((root.empty_blocks for root in facts.roots), default=0.0)
        if empty < LEAST_EMPTY:
            return Applies(False, f"no constant mask but causal ones leaves {LEAST_EMPTY:.0%} of its blocks empty")
        return Applies(True, f"a constant mask leaves {empty:.0%} of its blocks empty")

    def share(self, context: Context) -> float:
        empty = max((root.empty_blocks for root in context.facts.roots), default=0.0)
        return SHARE * min(1.0, max(0.0, empty)) * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables()

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._attention_flex import REQUESTS, Request

        request = Request()
        seams.switch(lambda: REQUESTS.append(request), lambda: REQUESTS.remove(request))

        def watched(_: Any, forward: "Forward") -> "Forward":
            from ._graph import PASSES

            if not PASSES:
                from hotlap.agent.seams import Refused

                raise Refused("the lever attention, whose masks it looks at, is not in")
            forwards = 0

            def with_sparse_attention(*args: Any, **kwargs: Any) -> Any:
                nonlocal forwards
                output = forward(*args, **kwargs)
                forwards += 1
                if forwards == PATIENCE and not request.used:
                    why = "; ".join(sorted(set(request.left))[:3]) or "no constant mask but causal ones"
                    seams.refuse(self.name, f"no attention is by a mask with many empty blocks: {why}")
                return output

            return with_sparse_attention

        seams.wrap_forward(watched, WATCHES)

    def source(self, settings: Settings) -> str:
        return (
            "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"
            "# once; keep: (L, S), true where may be attended\n"
            "blocks = create_block_mask(lambda b, h, q, kv: keep[q, kv], None, None, L, S)\n"
            "y = flex_attention(q, k, v, block_mask=blocks, scale=scale)  # in what torch.compile compiles"
        )


LEVER = FlexAttention()
