"""Linear layers that may be the head over a vocabulary: not those inside repeated blocks."""

from typing import Any

import torch

from .blocks import repeated


def heads(root: Any) -> list[Any]:
    """Layers that are nn.Linear itself, outside of repeated blocks."""
    inner = {id(part) for block in repeated(root) for part in block.modules()}
    return [module for module in root.modules() if type(module) is torch.nn.Linear and id(module) not in inner]
