"""Attention residual mix in the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.ops.native import floats, want, words

SOURCES_MAX = 64


def attn_res(sources: Tensor, norm: Tensor, proj: Tensor, eps: float) -> Tensor:
    """sources FP32 [S, R, n], norm and proj BF16 [n] to FP32 [R, n]."""
    count, rows, n = sources.shape
    want(1 <= count <= SOURCES_MAX, f"attn_res: {count} sources; 1 to {SOURCES_MAX} are possible")
    want(norm.shape == (n,) and proj.numel() == n, f"attn_res: weights do not have {n} numbers")
    out = torch.empty_like(sources[0])
    call = _native.MixCall()
    call.sources, call.out = floats(sources, "sources"), floats(out, "out")
    call.norm, call.proj = words(norm, "norm"), words(proj, "proj")
    call.count, call.rows, call.n, call.eps = count, rows, n, eps
    _native.attn_res(call)
    return out
