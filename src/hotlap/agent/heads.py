"""Linear layers with very many outputs, as the head over a vocabulary is: not those inside repeated blocks."""

from typing import Any

import torch

from .blocks import repeated


def heads(root: Any, least: int = 1) -> list[Any]:
    """Layers that are nn.Linear itself, outside of repeated blocks, with so many outputs."""
    inner = {id(part) for block in repeated(root) for part in block.modules()}
    linear = [module for module in root.modules() if type(module) is torch.nn.Linear and id(module) not in inner]
    return [module for module in linear if module.out_features >= least]
