"""Not a lever that is tuned: each batch of the training DataLoader in equal parts, every one a batch of its own.

For a command that fits in memory only so (`tune/reference.py`). Put in the user's process by its module's name, which
no recipe can hold.
"""

from typing import TYPE_CHECKING, Any, Final

from ._base import Lever, Settings
from ._batches import resize

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

NAME: Final = __name__.rpartition(".")[2]


class SmallerBatch(Lever):
    """Cut each batch into as many as the setting `parts` says."""

    name = NAME
    meaning = "batches of one part of as many samples"

    def install(self, seams: "Seams", settings: Settings) -> None:
        def change(loader: Any) -> None:
            resize(loader, parts=settings["parts"])

        seams.on_loader(change, settings.get("inference", False))


LEVER = SmallerBatch()
