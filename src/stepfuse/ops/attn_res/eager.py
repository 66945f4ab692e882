"""Attention residual mix, all rows at once in FP32."""

from __future__ import annotations

import torch
from torch import Tensor


def attn_res(sources: Tensor, norm: Tensor, proj: Tensor, eps: float) -> Tensor:
    """sources [S, R, n] to [R, n]."""
    if sources.shape[0] == 1:
        return sources[0].clone()
    inverse = torch.rsqrt(sources.square().mean(dim=-1) + eps)
    scores = (sources @ (norm.float() * proj.float())) * inverse
    weights = torch.softmax(scores, dim=0)
    return torch.einsum("sr,srn->rn", weights, sources)
