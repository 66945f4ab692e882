"""Token records of the latent cache: BF16 numbers, or e4m3 numbers and two FP32 scales.

A BF16 record is [latent + pe] BF16; an FP8 record is [latent + pe] e4m3fn bytes, then the scale of
the latent and the scale of pe. Scales are powers of two, so decoding is exact in BF16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.ops.views import KvDtype, LatentView

E4M3_MAX = 448.0
# The smallest normal FP32 exponent: below it a scale would lose its own precision.
_EXPONENT_MIN = -126


def power_scale(x: Tensor) -> Tensor:
    """x [..., n] to [..., 1]: the least power of two with |x| / scale <= 448; 1 where x is 0.

    Where x holds an infinity or NaN the scale is 1 and e4m3 keeps a NaN.
    """
    amax = x.abs().amax(dim=-1, keepdim=True)
    usable = torch.isfinite(amax) & (amax > 0)
    mantissa, exponent = torch.frexp(torch.where(usable, amax, 1.0) / E4M3_MAX)
    # amax/448 = m 2^e with m in [0.5, 1): its ceiled log2 is e, or e - 1 when m is exactly 0.5.
    power = (exponent - (mantissa == 0.5).to(exponent.dtype)).clamp(min=_EXPONENT_MIN)
    return torch.where(usable, torch.ldexp(torch.ones_like(amax), power), 1.0)


def encode(latent: Tensor, pe: Tensor, dtype: KvDtype) -> Tensor:
    """FP32 [R, L] and [R, P] to records uint8 [R, bytes]."""
    if dtype == "bf16":
        return torch.cat([latent, pe], dim=-1).to(torch.bfloat16).view(torch.uint8)
    scales = torch.cat([power_scale(latent), power_scale(pe)], dim=-1)
    numbers = torch.cat([latent / scales[:, :1], pe / scales[:, 1:]], dim=-1)
    # Some PyTorch versions cut an infinity to 448, which would hide it.
    numbers = torch.where(numbers.isfinite(), numbers, torch.nan)
    codes = numbers.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.cat([codes, scales.contiguous().view(torch.uint8)], dim=-1)


def decode(records: Tensor, view: LatentView) -> tuple[Tensor, Tensor]:
    """Records uint8 [T, bytes] to FP32 latent [T, L] and pe [T, P]."""
    numbers = view.latent + view.rope
    if view.dtype == "bf16":
        plain = records[:, : 2 * numbers].contiguous().view(torch.bfloat16).float()
        return plain[:, : view.latent], plain[:, view.latent :]
    codes = records[:, :numbers].contiguous().view(torch.float8_e4m3fn).float()
    scales = records[:, numbers : numbers + 8].contiguous().view(torch.float32)
    return codes[:, : view.latent] * scales[:, :1], codes[:, view.latent :] * scales[:, 1:]
