"""Latent attention of one sequence, row by row, on plain tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stepfuse.ops.linear.ref import rounded

CacheRounding = Literal["none", "bf16", "fp8"]
_E4M3_MAX = 448.0


@dataclass(frozen=True, slots=True)
class MlaTrace:
    """`weights` [rows][H, tokens seen] and `out` [R, H, L]."""

    weights: list[Tensor]
    out: Tensor


def fp8_rounded(x: Tensor) -> Tensor:
    """x [n] as an e4m3 record with one power-of-two scale returns it, in x's type."""
    largest = float(x.abs().max())
    scale = 1.0 if largest == 0 else 2.0 ** math.ceil(math.log2(largest / _E4M3_MAX))
    return (x / scale).float().to(torch.float8_e4m3fn).to(x.dtype) * scale


def cached(x: Tensor, rounding: CacheRounding) -> Tensor:
    """What the cache gives back for x [n] (the latent or the pe part of one token)."""
    if rounding == "none":
        return x
    return rounded(x) if rounding == "bf16" else fp8_rounded(x)


def mla(q: tuple[Tensor, Tensor], latent: Tensor, pe: Tensor, scale: float) -> MlaTrace:
    """q = (q_latent [R, H, L], q_pe [R, H, P]); latent [T, L] and pe [T, P] as cached.

    The R rows are the last R of the T tokens; row i sees tokens 0 .. T - R + i. Computes in q's
    type.
    """
    q_latent, q_pe = q
    rows, heads, _ = q_latent.shape
    before = latent.shape[0] - rows
    out = torch.empty_like(q_latent)
    all_weights = []
    for r in range(rows):
        seen = before + r + 1
        weights = q_latent.new_empty((heads, seen))
        for h in range(heads):
            scores = (latent[:seen] @ q_latent[r, h] + pe[:seen] @ q_pe[r, h]) * scale
            exponentials = torch.exp(scores - scores.max())
            weights[h] = exponentials / exponentials.sum()
            out[r, h] = weights[h] @ latent[:seen]
        all_weights.append(weights)
    return MlaTrace(all_weights, out)
