"""Not a lever that is tuned: code compiled by torch.compile draws the random numbers that eager code draws.

For judging the parity of a source that compiles its model itself, as `compile` does with its setting `same_random`.
Used by its module's name: no recipe can hold it.
"""

from typing import TYPE_CHECKING, Final

from ._base import Lever, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

NAME: Final = __name__


class SameRandom(Lever):
    name = NAME
    meaning = "compiled code draws the random numbers of eager code"

    def install(self, seams: "Seams", settings: Settings) -> None:
        draw_as_eager()


def draw_as_eager() -> None:
    """Let Inductor leave random numbers to eager kernels."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True


LEVER = SameRandom()
