"""Routed experts: per row the weighted sum of its chosen experts' gated MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.dispatch import implementation
from stepfuse.ops.packed import PackedExperts

if TYPE_CHECKING:
    from stepfuse.ops.native import Team

__all__ = ["experts"]


# Six parameters: routing is the two tensors `ops.router.route` returns.
def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w: PackedExperts,
    activation: ActivationGeometry,
    team: Team | None = None,
) -> Tensor:
    """x FP32 [R, in] to FP32 [R, in]: sum over a row's experts of weight * w2(act(w1 x, w3 x)).

    `ids` int32 [R, k], ascending and distinct in a row; `weights` FP32 [R, k] in that order.
    Inputs of both products are rounded to BF16. A row adds its experts in ascending id order, so
    that its result does not depend on the other rows.
    """
    out: Tensor = implementation("experts").experts(x, ids, weights, w, activation, team)
    return out
