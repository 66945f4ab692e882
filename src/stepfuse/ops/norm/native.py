"""RMS norm in the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.ops.native import floats, want, words


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x FP32 [R, n], weight BF16 [n] to FP32 [R, n]."""
    rows, n = x.shape
    want(weight.shape == (n,), f"rms_norm: weight {tuple(weight.shape)} for rows of {n}")
    out = torch.empty_like(x)
    _native.rms_norm(floats(x, "x"), words(weight, "weight"), floats(out, "out"), [rows, n], eps)
    return out
