"""Packed weights: the layouts every kernel reads, and the permutations in and out of them.

Element order is written above `native/include/stepfuse/kernels.h` and in docs/layouts.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, TILE_ROWS, ExpertFormat


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """BF16 [out, in] as tiles [ceil(out/32), in/2, 32, 2]; rows past `out` are zero."""

    data: Tensor
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class PackedGateUp:
    """BF16 gate and up [width, in] as one packed matrix; tile t = gate rows 16t.., up rows 16t..

    The tail is padded per half: tile count is ceil(width/16).
    """

    data: Tensor
    width: int
    in_features: int


@dataclass(frozen=True, slots=True)
class PackedHeads:
    """Per head a packed BF16 matrix: [heads, ceil(out/32), in/2, 32, 2]."""

    data: Tensor
    heads: int
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """`data` uint8 [experts, expert_bytes], one contiguous block per expert.

    MXFP4: w13 nibbles [2*width/32][in/8][32][4], w13 scales [2*width/32][in/32][32], then w2 alike
    with [out/32] tiles and in = width. BF16: w13 gate/up tiles, then w2 tiles. Parts start at the
    offsets (bytes, multiples of 64). An expert's output is as wide as its input (latent or hidden).
    """

    data: Tensor
    format: ExpertFormat
    experts: int
    in_features: int
    width: int
    w13_offset: int
    w13_scale_offset: int
    w2_offset: int
    w2_scale_offset: int


def pack_rows(weight: Tensor) -> Tensor:
    """2-byte [..., out, in] to [..., ceil(out/32), in/2, 32, 2], zero rows behind `out`."""
    *lead, rows, cols = weight.shape
    tiles = -(-rows // TILE_ROWS)
    packed = weight.new_zeros((*lead, tiles, cols // 2, TILE_ROWS, 2))
    full = rows // TILE_ROWS
    body = weight[..., : full * TILE_ROWS, :].reshape(*lead, full, TILE_ROWS, cols // 2, 2)
    packed[..., :full, :, :, :] = body.transpose(-3, -2)
    if full < tiles:
        rest = rows - full * TILE_ROWS
        tail = weight[..., full * TILE_ROWS :, :].reshape(*lead, rest, cols // 2, 2)
        packed[..., full, :, :rest, :] = tail.transpose(-3, -2)
    return packed


def unpack_rows(packed: Tensor, rows: int) -> Tensor:
    """Inverse of `pack_rows`: [..., tiles, in/2, 32, 2] to [..., rows, in]."""
    *lead, tiles, pairs, _, _ = packed.shape
    plain = packed.transpose(-3, -2).reshape(*lead, tiles * TILE_ROWS, pairs * 2)
    return plain[..., :rows, :]


def interleave_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """[..., width, n] twice to [..., 2 * width', n] with 16 gate rows, then 16 up rows, repeated.

    `width'` is width rounded up to 16; the added rows are zero.
    """
    half = TILE_ROWS // 2
    *lead, width, n = gate.shape
    tiles = -(-width // half)
    both = gate.new_zeros((*lead, tiles, 2, half, n))
    for i, part in enumerate((gate, up)):
        padded = part.new_zeros((*lead, tiles * half, n))
        padded[..., :width, :] = part
        both[..., i, :, :] = padded.reshape(*lead, tiles, half, n)
    return both.reshape(*lead, tiles * TILE_ROWS, n)


def split_gate_up(both: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Inverse of `interleave_gate_up`."""
    half = TILE_ROWS // 2
    *lead, rows, n = both.shape
    parts = both.reshape(*lead, rows // TILE_ROWS, 2, half, n)
    gate = parts[..., 0, :, :].reshape(*lead, rows // 2, n)[..., :width, :]
    up = parts[..., 1, :, :].reshape(*lead, rows // 2, n)[..., :width, :]
    return gate, up


def pack_nibbles(packed: Tensor) -> Tensor:
    """MXFP4 bytes [..., out, in/2] to [..., out/32, in/8, 32, 4]."""
    *lead, rows, half_cols = packed.shape
    body = packed.reshape(*lead, rows // TILE_ROWS, TILE_ROWS, half_cols // 4, 4)
    return body.transpose(-3, -2).contiguous()


def unpack_nibbles(tiles: Tensor) -> Tensor:
    """Inverse of `pack_nibbles`."""
    *lead, count, octets, _, _ = tiles.shape
    return tiles.transpose(-3, -2).reshape(*lead, count * TILE_ROWS, octets * 4)


def pack_scales(scales: Tensor) -> Tensor:
    """E8M0 bytes [..., out, in/32] to [..., out/32, in/32, 32]."""
    *lead, rows, groups = scales.shape
    return (
        scales.reshape(*lead, rows // TILE_ROWS, TILE_ROWS, groups).transpose(-2, -1).contiguous()
    )


def unpack_scales(tiles: Tensor) -> Tensor:
    """Inverse of `pack_scales`."""
    *lead, count, groups, _ = tiles.shape
    return tiles.transpose(-2, -1).reshape(*lead, count * TILE_ROWS, groups)


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Byte offsets of one expert's parts, each a multiple of 64; scale offsets are 0 for BF16."""

    w13: int
    w13_scale: int
    w2: int
    w2_scale: int
    bytes: int


def expert_layout(form: ExpertFormat, in_features: int, width: int) -> ExpertLayout:
    """Where the parts of an expert [in -> width -> in] lie. MXFP4 wants multiples of 32."""

    def tiles(rows: int) -> int:
        return -(-rows // TILE_ROWS) * TILE_ROWS

    def aligned(size: int) -> int:
        return -(-size // 64) * 64

    up_rows, down_rows = tiles(2 * width), tiles(in_features)
    if form == "bf16":
        w2 = aligned(up_rows * in_features * 2)
        return ExpertLayout(0, 0, w2, 0, w2 + aligned(down_rows * width * 2))
    w13_scale = aligned(up_rows * in_features // 2)
    w2 = w13_scale + aligned(up_rows * in_features // FP4_GROUP)
    w2_scale = w2 + aligned(down_rows * width // 2)
    return ExpertLayout(
        0, w13_scale, w2, w2_scale, w2_scale + aligned(down_rows * width // FP4_GROUP)
    )


def as_bits(weight: Tensor) -> Tensor:
    """A BF16 tensor as its 16-bit patterns (int16), so that packing moves NaNs unchanged."""
    return weight.view(torch.int16)
