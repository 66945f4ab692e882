"""Products with packed BF16 weights in the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.core.config import TILE_ROWS, ActivationGeometry
from stepfuse.ops.native import Team, activation, floats, want, words
from stepfuse.ops.packed import PackedGateUp, PackedHeads, PackedLinear


def _call(x: Tensor, y: Tensor, weight: Tensor, shape: tuple[int, int, int]) -> _native.ProductCall:
    """`shape`: tiles the weight must have, in, out."""
    tiles, in_features, out_features = shape
    want(
        x.shape[-1] == in_features and weight.numel() == tiles * TILE_ROWS * in_features,
        f"product: x {tuple(x.shape)} and weight {tuple(weight.shape)} are no "
        f"{in_features} -> {out_features}",
    )
    call = _native.ProductCall()
    call.x, call.y, call.weight = floats(x, "x"), floats(y, "y"), words(weight, "weight")
    call.rows, call.in_features, call.out_features = x.shape[0], in_features, out_features
    return call


def _tiles(rows: int, tile_rows: int = TILE_ROWS) -> int:
    return -(-rows // tile_rows)


def linear(x: Tensor, w: PackedLinear, team: Team | None = None) -> Tensor:
    """x FP32 [R, in], rounded to BF16, to FP32 [R, out]."""
    y = x.new_empty((x.shape[0], w.out_features))
    shape = (_tiles(w.out_features), w.in_features, w.out_features)
    _native.linear(_call(x, y, w.data, shape), team)
    return y


def linear_fp32(x: Tensor, w: PackedLinear, team: Team | None = None) -> Tensor:
    """x FP32 [R, in], unrounded, to FP32 [R, out]."""
    y = x.new_empty((x.shape[0], w.out_features))
    shape = (_tiles(w.out_features), w.in_features, w.out_features)
    _native.linear_fp32(_call(x, y, w.data, shape), team)
    return y


def gate_up(
    x: Tensor, w: PackedGateUp, geometry: ActivationGeometry, team: Team | None = None
) -> Tensor:
    """x FP32 [R, in], rounded to BF16, to FP32 [R, width]."""
    y = x.new_empty((x.shape[0], w.width))
    shape = (_tiles(w.width, TILE_ROWS // 2), w.in_features, w.width)
    _native.gate_up(_call(x, y, w.data, shape), activation(geometry), team)
    return y


def heads(x: Tensor, w: PackedHeads, team: Team | None = None) -> Tensor:
    """x FP32 [R, H, in], rounded to BF16, to FP32 [R, H, out]."""
    want(x.shape[1] == w.heads, f"heads: x has {x.shape[1]} heads, the weight {w.heads}")
    y = torch.empty((x.shape[0], w.heads, w.out_features))
    shape = (w.heads * _tiles(w.out_features), w.in_features, w.out_features)
    call = _call(x, y, w.data, shape)
    call.heads = w.heads
    _native.heads(call, team)
    return y
