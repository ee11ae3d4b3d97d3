"""Not a lever: a forward that is made once more, and counts once."""

from typing import Any


class BuffersKept:
    """Running statistics go to copies: the forward has counted this batch already. Entered for each backward of it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.kept: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def __enter__(self) -> None:
        self.kept = [(part._buffers, dict(part._buffers)) for part in self.module.modules() if part._buffers]
        for buffers, values in self.kept:
            buffers.update({name: None if value is None else value.clone() for name, value in values.items()})

    def __exit__(self, *_: object) -> None:
        for buffers, values in self.kept:
            buffers.update(values)
        self.kept = []
