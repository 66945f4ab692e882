"""Packed fields back to the tensors of the file, with the inverse permutations of ops.packed."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, TILE_ROWS
from stepfuse.ops.packed import (
    PackedExperts,
    PackedGateUp,
    PackedHeads,
    PackedLinear,
    split_gate_up,
    unpack_nibbles,
    unpack_rows,
    unpack_scales,
)


def linear(w: PackedLinear) -> Tensor:
    return unpack_rows(w.data, w.out_features)


def gate_up(w: PackedGateUp) -> tuple[Tensor, Tensor]:
    return split_gate_up(unpack_rows(w.data, w.data.shape[0] * TILE_ROWS), w.width)


def heads(w: PackedHeads) -> Tensor:
    """[heads, out, in]."""
    return unpack_rows(w.data, w.out_features)


def experts_bf16(w: PackedExperts, expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """w1, w2, w3."""
    block = w.data[expert]
    up_rows = -(-w.width // 16) * TILE_ROWS
    w13 = _bf16(block, w.w13_offset, up_rows, w.in_features)
    w1, w3 = split_gate_up(unpack_rows(w13, up_rows), w.width)
    down_rows = -(-w.in_features // TILE_ROWS) * TILE_ROWS
    w2 = _bf16(block, w.w2_offset, down_rows, w.width)
    return w1, unpack_rows(w2, w.in_features), w3


def experts_mxfp4(w: PackedExperts, expert: int) -> dict[str, Tensor]:
    """`w1_packed`, `w1_scale` and so on."""
    block = w.data[expert]
    up = 2 * w.width
    n13 = unpack_nibbles(_nibbles(block, w.w13_offset, up, w.in_features))
    s13 = unpack_scales(_scales(block, w.w13_scale_offset, up, w.in_features))
    (w1, w3), (s1, s3) = split_gate_up(n13, w.width), split_gate_up(s13, w.width)
    return {
        "w1_packed": w1,
        "w3_packed": w3,
        "w1_scale": s1,
        "w3_scale": s3,
        "w2_packed": unpack_nibbles(_nibbles(block, w.w2_offset, w.in_features, w.width)),
        "w2_scale": unpack_scales(_scales(block, w.w2_scale_offset, w.in_features, w.width)),
    }


def _bf16(block: Tensor, offset: int, rows: int, cols: int) -> Tensor:
    part = block[offset : offset + rows * cols * 2].view(torch.bfloat16)
    return part.view(rows // TILE_ROWS, cols // 2, TILE_ROWS, 2)


def _nibbles(block: Tensor, offset: int, rows: int, cols: int) -> Tensor:
    part = block[offset : offset + rows * cols // 2]
    return part.view(rows // TILE_ROWS, cols // 8, TILE_ROWS, 4)


def _scales(block: Tensor, offset: int, rows: int, cols: int) -> Tensor:
    groups = cols // FP4_GROUP
    return block[offset : offset + rows * groups].view(rows // TILE_ROWS, groups, TILE_ROWS)
