"""Choosing experts: sigmoid scores, a bias that only selects, k distinct experts per row."""

from __future__ import annotations

from torch import Tensor

from stepfuse.ops.dispatch import implementation

__all__ = ["route"]


def route(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """logits FP32 [R, E], bias FP32 [E] to (ids int32 [R, k] ascending, weights FP32 [R, k]).

    The k largest of sigmoid(logits) + bias are chosen, the lower index on ties; a weight is the
    chosen sigmoid (without bias), divided by the sum of the k (at least 1e-20) when `renormalize`,
    times `scaling`.
    """
    ids: Tensor
    weights: Tensor
    ids, weights = implementation("router").route(logits, bias, top_k, scaling, renormalize)
    return ids, weights
