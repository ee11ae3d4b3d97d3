"""A sibling module."""

import torch

X = torch.arange(24.0).reshape(6, 4) / 24
