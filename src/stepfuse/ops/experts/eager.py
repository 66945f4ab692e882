"""Routed experts in PyTorch: rows grouped by expert, each expert unpacked once."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, TILE_ROWS, ActivationGeometry
from stepfuse.ops.linear.eager import activate, rounded
from stepfuse.ops.mxfp4 import decode_mxfp4
from stepfuse.ops.packed import (
    PackedExperts,
    split_gate_up,
    unpack_nibbles,
    unpack_rows,
    unpack_scales,
)


def _tiles(rows: int) -> int:
    return -(-rows // TILE_ROWS)


def _matrix(block: Tensor, offsets: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """FP32 [tiles * 32, in] of an MXFP4 matrix whose nibbles and scales start at `offsets`."""
    rows, cols = _tiles(shape[0]) * TILE_ROWS, shape[1]
    nibble_at, scale_at = offsets
    nibbles = block[nibble_at : nibble_at + rows * cols // 2]
    scales = block[scale_at : scale_at + rows * cols // FP4_GROUP]
    tiles = rows // TILE_ROWS
    return decode_mxfp4(
        unpack_nibbles(nibbles.view(tiles, cols // 8, TILE_ROWS, 4)),
        unpack_scales(scales.view(tiles, cols // FP4_GROUP, TILE_ROWS)),
    )


def _bf16_matrix(block: Tensor, offset: int, shape: tuple[int, int]) -> Tensor:
    tiles, cols = _tiles(shape[0]), shape[1]
    raw = block[offset : offset + tiles * TILE_ROWS * cols * 2].view(torch.bfloat16)
    plain = raw.view(tiles, cols // 2, TILE_ROWS, 2)
    return unpack_rows(plain, tiles * TILE_ROWS).float()


def unpack_expert(w: PackedExperts, expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """FP32 gate [width, in], up [width, in], down [in, width] of one expert."""
    block = w.data[expert]
    # The gate and up halves are padded to 16 rows each, the two together to whole tiles.
    half = TILE_ROWS // 2
    both_shape = (2 * -(-w.width // half) * half, w.in_features)
    down_shape = (w.in_features, w.width)
    if w.format == "mxfp4":
        both = _matrix(block, (w.w13_offset, w.w13_scale_offset), both_shape)
        down = _matrix(block, (w.w2_offset, w.w2_scale_offset), down_shape)
    else:
        both = _bf16_matrix(block, w.w13_offset, both_shape)
        down = _bf16_matrix(block, w.w2_offset, down_shape)
    gate, up = split_gate_up(both, w.width)
    return gate, up, down[: w.in_features]


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w: PackedExperts,
    activation: ActivationGeometry,
    team: object = None,  # noqa: ARG001
) -> Tensor:
    """x [R, in] to [R, in]; experts are visited in ascending order, so every row adds them so."""
    x = rounded(x)
    out = torch.zeros_like(x)
    for expert in torch.unique(ids).tolist():
        rows, place = torch.nonzero(ids == expert, as_tuple=True)
        gate, up, down = unpack_expert(w, expert)
        source = x[rows]
        hidden = activate(source @ gate.T, source @ up.T, activation)
        part = rounded(hidden) @ down.T
        out.index_add_(0, rows, part * weights[rows, place].unsqueeze(1))
    return out
