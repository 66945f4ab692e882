"""Expert choice, one row at a time, by k passes over the scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RouteTrace:
    """`scores` [R, E]; `ids` int64 [R, k] ascending; `weights` [R, k] in the order of ids."""

    scores: Tensor
    ids: Tensor
    weights: Tensor


def choose(biased: list[float], top_k: int) -> list[int]:
    """Indices of the k largest values, ascending; the lower index on ties."""
    left = list(range(len(biased)))
    for _ in range(len(biased) - top_k):
        worst = left[-1]
        for i in reversed(left):
            if biased[i] < biased[worst]:
                worst = i
        left.remove(worst)
    return left


def route(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> RouteTrace:
    """logits [R, E] of any float type; computes in that type."""
    scores = 1 / (1 + torch.exp(-logits))
    biased = scores + bias.to(logits.dtype)
    ids = torch.tensor([choose(row, top_k) for row in biased.tolist()], dtype=torch.int64)
    weights = torch.gather(scores, 1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-20)
    return RouteTrace(scores, ids, weights * scaling)
