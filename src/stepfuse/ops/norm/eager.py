"""RMS norm in FP32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x FP32 [R, n], weight BF16 [n] to FP32 [R, n]."""
    inverse = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x * inverse * weight.float()
