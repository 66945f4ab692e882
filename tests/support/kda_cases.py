"""Random inputs, parameters and caches of the KDA op, and what the reference makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from stepfuse.core.config import KdaGeometry
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.kda.ref import KdaState, kda
from stepfuse.ops.views import Span, StateView
from tests.support.tolerance import U_FP32, U_GATE

NO_PAGES = np.zeros(0, dtype=np.int32)


def geometry(heads: int = 3, dim: int = 32, bound: float | None = -5.0) -> KdaGeometry:
    return KdaGeometry(heads, dim, 4, dim, None, bound)


def random_params(g: KdaGeometry, seed: int = 0) -> KdaParams:
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make)

    return KdaParams(
        conv=normal(3, 4, g.width) * 0.5,
        a_log=normal(g.heads) * 0.5,
        dt_bias=normal(g.width),
        o_norm=1 + 0.1 * normal(g.dim),
        geometry=g,
        norm_eps=1e-5,
    )


def random_inputs(g: KdaGeometry, rows: int, seed: int = 1) -> KdaInputs:
    make = torch.Generator().manual_seed(seed)
    widths = (g.width, g.width, g.width, g.width, g.heads, g.width)
    return KdaInputs(*(torch.randn(rows, w, generator=make) for w in widths))


def nan_view(g: KdaGeometry, slots: int) -> StateView:
    """Every slot holds NaN: what an op must neither read (fresh) nor touch (other slots)."""
    state = torch.full((slots, g.heads, g.dim // 32, g.dim, 32), torch.nan)
    conv = torch.full((slots, 3, 3, g.width), torch.nan, dtype=torch.bfloat16)
    return StateView(state, conv)


def span(start: int, rows: int, slot: int, cached: int = 0) -> Span:
    return Span(start, rows, slot, cached, NO_PAGES)


def rows_of(inputs: KdaInputs, rows: slice | list[int]) -> KdaInputs:
    return KdaInputs(*(getattr(inputs, f.name)[rows] for f in fields(inputs)))


def as_fp64(inputs: KdaInputs) -> KdaInputs:
    return KdaInputs(*(getattr(inputs, f.name).double() for f in fields(inputs)))


def reference(inputs: KdaInputs, params: KdaParams, state: KdaState | None = None) -> Tensor:
    """FP64 outputs [R, C] of one sequence, token by token; `state` moves forward."""
    state = state or KdaState.empty(params, torch.float64)
    return torch.stack(kda(as_fp64(inputs), params, state).out)


def plain(state: Tensor) -> Tensor:
    """[H, dim/32, dim, 32] as [H, dim (k), dim (v)]."""
    return torch.cat(list(state.unbind(1)), dim=-1)


def kda_tolerance(g: KdaGeometry, tokens: int) -> float:
    """Relative to a head's norm: sums over dim and over the tokens behind it, and the gates'."""
    return (g.dim + 4 * tokens) * U_FP32 + 8 * U_GATE


def head_error(got: Tensor, want: Tensor, g: KdaGeometry) -> float:
    """Largest error of a row and head, relative to that row and head's norm."""
    shape = (len(got), g.heads, g.dim)
    difference = (got.double() - want).view(shape).norm(dim=-1)
    return float((difference / want.view(shape).norm(dim=-1)).max())


def total_rows(spans: Sequence[Span]) -> int:
    return sum(s.rows for s in spans)
