"""`torch.cumsum` of few long rows, in chunks: the library gives a row to one block and a column to one thread.

So `mask.cumsum(dim=0)` over 65536 tokens and 8 experts keeps 8 threads of a GPU busy. Here it is scans of chunks, a
scan of their sums, and the sums added, so that the whole device works; the same each time. It takes the place of
`aten::cumsum` on a CUDA device for floats, integers and truth values, where it was measured to win (`WINS`); all else
goes to the library, as do calls with `out=`, those in place, and what Inductor makes a kernel of its own. Sums of
integers are equal, those of floats added in another order.
"""

from typing import TYPE_CHECKING, Final

from ._base import WATCHES, Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

WINS: Final = {"last": (32, 1 << 20), "other": (1024, 1 << 12)}
"""By whether the last dimension is scanned: rows at most, their length at least. On an H100, torch 2.11. Last
(benchmarks/results/slow-ops-h100.json, `two-level`): 3.1 to 25 times as fast over 4 to 32 rows of 1048576 or more, 1.5
and 0.94 over 128, 0.4 to 0.7 over 65536. Other (the same and slow-ops-tokens-h100.json, which is of this code and of
int64, bool and float32): 3.5 to 4.9 times as fast over 8 to 1024 columns of 4096, 11 to 24 of 16384, 22 and more of
65536 and longer."""
SHARE: Final = 0.5
"""Of forward and backward, at most: how long the scans take is not known before they are tried."""


class ChunkedCumsum(Lever):
    name = "chunked-cumsum"
    meaning = "torch.cumsum of few long rows or columns in chunks, which the whole device works on"
    risk = "numeric"
    tolerance = 0.001
    costs_s = 3.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        if not context.cuda:
            return Applies(False, "the model runs on the CPU")
        if not any(root.cumsum for root in context.facts.roots):
            return Applies(False, "no cumsum was found in the code of the model")
        return Applies(True, "the code of the model calls cumsum, which is slow over few long rows")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._scan import Scans

        scans = Scans(WINS, lambda: seams.leave_out(self.name, "no cumsum of few long rows was seen"))
        seams.switch(scans.put_in, scans.take_out)
        seams.wrap_forward(scans.watch, WATCHES)

    def source(self, settings: Settings) -> str:
        return (
            "# in place of x.cumsum(0), for x of few columns and a length that is a multiple of 512:\n"
            "local = x.unflatten(0, (-1, 512)).cumsum(1)\n"
            "ends = local[:, -1].cumsum(0)\n"
            "y = (local + (ends - local[:, -1]).unsqueeze(1)).flatten(0, 1)  # the sums before each chunk added"
        )


LEVER = ChunkedCumsum()
