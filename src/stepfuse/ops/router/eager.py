"""Expert choice with a stable sort."""

from __future__ import annotations

import torch
from torch import Tensor

# Where every chosen score underflows to 0 the weights are 0, not NaN.
SUM_MIN = 1e-20


def route(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """logits [R, E] to (ids int32 [R, k] ascending, weights [R, k])."""
    scores = torch.sigmoid(logits)
    # topk promises no order among equal values; a stable sort keeps the lower index first.
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices
    ids = torch.sort(order[:, :top_k], dim=-1).values
    weights = torch.gather(scores, 1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(SUM_MIN)
    return ids.to(torch.int32), weights * scaling
