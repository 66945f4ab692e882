"""Routed experts in the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.core.config import FP4_GROUP, ActivationGeometry
from stepfuse.ops.native import Team, activation, address, floats, want
from stepfuse.ops.packed import PackedExperts


def _check(x: Tensor, ids: Tensor, w: PackedExperts) -> None:
    want(x.shape[1] == w.in_features, f"experts: x {tuple(x.shape)}, in = {w.in_features}")
    want(
        w.format == "bf16" or (w.in_features % FP4_GROUP == 0 and w.width % FP4_GROUP == 0),
        f"experts: MXFP4 of {w.in_features} -> {w.width}; both must be multiples of {FP4_GROUP}",
    )
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        want(low >= 0 and high < w.experts, f"experts: ids {low}..{high} of {w.experts} experts")


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w: PackedExperts,
    geometry: ActivationGeometry,
    team: Team | None = None,
) -> Tensor:
    """x FP32 [R, in] to the weighted sum of its chosen experts FP32 [R, in]."""
    _check(x, ids, w)
    want(ids.shape == weights.shape, f"experts: ids {ids.shape}, weights {weights.shape}")
    y = torch.empty_like(x)
    call = _native.ExpertsCall()
    call.x, call.y = floats(x, "x"), floats(y, "y")
    call.ids, call.weights = address(ids, torch.int32, "ids"), floats(weights, "weights")
    call.data = address(w.data, torch.uint8, "experts")
    call.expert_bytes = w.data.stride(0)
    call.w13_offset, call.w13_scale_offset = w.w13_offset, w.w13_scale_offset
    call.w2_offset, call.w2_scale_offset = w.w2_offset, w.w2_scale_offset
    call.rows, call.chosen, call.experts = x.shape[0], ids.shape[1], w.experts
    call.in_features, call.width, call.mxfp4 = w.in_features, w.width, w.format == "mxfp4"
    _native.experts(call, activation(geometry), team)
    return y
