"""Kimi Delta Attention over the rows of several sequences, on caches it does not own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from stepfuse.core.config import KdaGeometry
from stepfuse.ops.dispatch import implementation
from stepfuse.ops.views import Span, StateView

if TYPE_CHECKING:
    from stepfuse.ops.native import Team

__all__ = ["KdaInputs", "KdaParams", "kda"]


@dataclass(frozen=True, slots=True)
class KdaInputs:
    """The projections of R rows, FP32, C = heads * dim.

    `q`, `k`, `v` [R, C] before the convolution; `decay` [R, C] before dt_bias; `beta` [R, H] and
    `gate` [R, C] before the sigmoid.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True)
class KdaParams:
    """`conv` FP32 [3 (q,k,v), 4 taps, C], tap 3 multiplies the present input; `a_log` FP32 [H];
    `dt_bias` FP32 [C]; `o_norm` FP32 [dim].
    """

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    o_norm: Tensor
    geometry: KdaGeometry
    norm_eps: float


def kda(
    inputs: KdaInputs,
    params: KdaParams,
    view: StateView,
    spans: Sequence[Span],
    team: Team | None = None,
) -> Tensor:
    """Gated, normalised outputs FP32 [R, C] (before o_proj); the slots of `view` move forward.

    A span's rows are in token order. A span with `cached` 0 starts from a zero state and an empty
    window, whatever its slot held; a span without rows leaves its slot untouched. Inputs of the
    convolution are rounded to BF16, which is what its window stores; all else is FP32.
    """
    out: Tensor = implementation("kda").kda(inputs, params, view, spans, team)
    return out
