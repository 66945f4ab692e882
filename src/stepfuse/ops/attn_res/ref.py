"""Attention residual mix, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepfuse.ops.norm.ref import rms_norm


@dataclass(frozen=True, slots=True)
class AttnResTrace:
    """`scores` and `weights` [R, S], `out` [R, n]."""

    scores: Tensor
    weights: Tensor
    out: Tensor


def attn_res(sources: Tensor, norm: Tensor, proj: Tensor, eps: float) -> AttnResTrace:
    """sources [S, R, n] of any float type; computes in that type."""
    count, rows, _ = sources.shape
    scores = sources.new_empty((rows, count))
    weights = sources.new_empty((rows, count))
    out = torch.empty_like(sources[0])
    for r in range(rows):
        for s in range(count):
            scores[r, s] = (rms_norm(sources[s, r], norm, eps) * proj.to(sources.dtype)).sum()
        exponentials = torch.exp(scores[r] - scores[r].max())
        weights[r] = exponentials / exponentials.sum()
        out[r] = sum(weights[r, s] * sources[s, r] for s in range(count))
    return AttnResTrace(scores, weights, out)
