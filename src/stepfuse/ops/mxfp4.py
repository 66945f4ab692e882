"""MXFP4 codec: E2M1 nibbles in groups of 32 columns that share one E8M0 scale.

Source: the OCP microscaling formats. Two elements to a byte, the low nibble is the even column; a
scale byte s means 2^(s-127), 255 is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_NAN = 255
# Where two magnitudes are equally near, the even code wins: the boundary below an even code is
# moved down by one ulp, so that the tie itself falls above it.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _pair_table() -> Tensor:
    """FP32 [256, 2]: the two values of each byte."""
    signed = torch.tensor(E2M1_MAGNITUDES + tuple(-m for m in E2M1_MAGNITUDES))
    byte = torch.arange(256)
    return torch.stack((signed[byte & 15], signed[byte >> 4]), dim=-1)


def _bounds() -> Tensor:
    bounds = torch.tensor(_MIDPOINTS)
    bounds[1::2] = torch.nextafter(bounds[1::2], torch.zeros(()))
    return bounds


_PAIRS = _pair_table()
_BOUNDS = _bounds()


def decode_scales(scales: Tensor) -> Tensor:
    """E8M0 bytes (uint8, any shape) to FP32: 2^(s-127) exactly, byte 0 a denormal, 255 NaN."""
    bits = scales.to(torch.int32) << 23
    bits = torch.where(scales == 0, 1 << 22, bits)
    return torch.where(scales == SCALE_NAN, 0x7FC00000, bits).to(torch.int32).view(torch.float32)


def decode_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """uint8 [..., out, in/2] and uint8 [..., out, in/32] to FP32 [..., out, in].

    Every product is exact in FP32 except what lies beyond its range (6 * 2^127 is infinite).
    """
    *lead, half = packed.shape
    values = _PAIRS.index_select(0, packed.reshape(-1).to(torch.int32))
    grouped = values.reshape(*lead, half * 2 // FP4_GROUP, FP4_GROUP)
    return (grouped * decode_scales(scales).unsqueeze(-1)).reshape(*lead, half * 2)


def encode_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """FP32 [..., out, in] to (nibbles uint8 [..., out, in/2], scales uint8 [..., out, in/32]).

    `in` is a multiple of 32. The scale puts a group's largest magnitude into [3.5, 7) times itself:
    from 7 on, cutting it to 6 would cost more than the coarser grid. Values round to nearest, ties
    to even.
    """
    *lead, cols = weight.shape
    groups = weight.float().reshape(*lead, cols // FP4_GROUP, FP4_GROUP)
    _, power = torch.frexp(groups.abs().amax(-1))
    exponent = power - 3  # amax lies in [4, 8) times 2^exponent
    exponent += torch.ldexp(groups.abs().amax(-1), -exponent) >= 7.0
    exponent = exponent.clamp(-127, 127)
    scaled = _ldexp_exact(groups, -exponent.unsqueeze(-1))
    codes = torch.bucketize(scaled.abs(), _BOUNDS, out_int32=True).to(torch.uint8)
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    pairs = codes.reshape(*lead, cols // 2, 2)
    packed = pairs[..., 0] | (pairs[..., 1] << 4)
    return packed, (exponent + 127).to(torch.uint8)


def _ldexp_exact(x: Tensor, power: Tensor) -> Tensor:
    """x * 2^power in two steps: 2^127 alone cannot lift a denormal group into range."""
    half = torch.div(power, 2, rounding_mode="floor")
    two = torch.full((), 2.0)
    return x * torch.pow(two, half) * torch.pow(two, power - half)


def mxfp4_bytes(rows: int, cols: int) -> int:
    """Bytes of one MXFP4 matrix in the file: nibbles and scales."""
    return rows * cols // 2 + rows * cols // FP4_GROUP
