"""hotlap: makes other people's PyTorch training faster, with proof.

This file is imported inside the user's training process too: keep it empty of work.
"""

TYPE_CHECKING = False  # importing that of typing would take a moment
if TYPE_CHECKING:
    from os import PathLike

    from .runs.folder import RunFolder

__version__ = "0.1.0"


def open_run(path: "str | PathLike[str]") -> "RunFolder":
    """The run in a folder. Raises `hotlap.records.errors.RecordError` where there is none."""
    from .runs.folder import open_run

    return open_run(path)
