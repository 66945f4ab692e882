"""RMS norm in one formula, in the precision of its input."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., n] of any float type, weight [n]: x / sqrt(mean(x^2) + eps) * weight, in x's type."""
    mean_square = (x * x).sum(dim=-1, keepdim=True) / x.shape[-1]
    return x / torch.sqrt(mean_square + eps) * weight.to(x.dtype)
