"""MXFP4 for training: rounding with a straight-through gradient, and packing for the export."""

from __future__ import annotations

import torch

GROUP = 32
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2


def _scaled(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups divided by their scale [..., in/32, 32], and the scale's exponent [..., in/32, 1]."""
    groups = weight.reshape(*weight.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    exponent = torch.ceil(torch.log2(largest / VALUES[-1]))
    return groups * torch.exp2(-exponent), exponent


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [..., in] at MXFP4's precision; the gradient passes unchanged."""
    with torch.no_grad():
        scaled, exponent = _scaled(weight)
        index = torch.bucketize(scaled.abs(), _MIDDLES)
        near = VALUES[index].copysign(scaled) * torch.exp2(exponent)
        change = near.flatten(-2) - weight
    return weight + change


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight_packed` U8 [..., in/2], low nibble first, and `weight_scale` U8 [..., in/32]."""
    scaled, exponent = _scaled(weight)
    code = torch.bucketize(scaled.abs(), _MIDDLES) | (torch.signbit(scaled).long() << 3)
    code = code.flatten(-2)
    packed = code[..., 0::2] | (code[..., 1::2] << 4)
    return packed.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The FP32 weight [..., in] that `pack` stored."""
    code = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()
    value = VALUES[code & 7] * torch.where(code > 7, -1.0, 1.0)
    factor = torch.exp2(scale.float() - 127.0).unsqueeze(-1)
    groups = value.reshape(*scale.shape, GROUP)
    return torch.mul(groups, factor).flatten(-2)
