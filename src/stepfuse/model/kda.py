"""A KDA attention layer: projections, the recurrent op, output projection."""

from __future__ import annotations

from torch import Tensor

from stepfuse.model.context import Context
from stepfuse.ops.kda import KdaInputs, KdaParams, kda
from stepfuse.ops.linear import linear
from stepfuse.ops.packed import PackedLinear
from stepfuse.ops.views import StateView
from stepfuse.weights.store import KdaWeights


def kda_attention(x: Tensor, w: KdaWeights, view: StateView, context: Context) -> Tensor:
    """x FP32 [R, hidden] (normalised) to FP32 [R, hidden]; the spans' slots move forward."""
    geometry = context.geometry

    def project(weight: PackedLinear) -> Tensor:
        return linear(x, weight, context.team)

    inputs = KdaInputs(
        q=project(w.q),
        k=project(w.k),
        v=project(w.v),
        decay=linear(project(w.f_a), w.f_b, context.team),
        beta=project(w.b),
        gate=_output_gate(x, w, context),
    )
    params = KdaParams(
        conv=w.conv,
        a_log=w.a_log,
        dt_bias=w.dt_bias,
        o_norm=w.o_norm,
        geometry=geometry.kda,
        norm_eps=geometry.norm_eps,
    )
    out = kda(inputs, params, view, context.spans, context.team)
    return linear(out, w.o, context.team)


def _output_gate(x: Tensor, w: KdaWeights, context: Context) -> Tensor:
    """Full rank (K3) or through a low rank (Kimi-Linear)."""
    if w.g is not None:
        return linear(x, w.g, context.team)
    assert w.g_a is not None
    assert w.g_b is not None
    return linear(linear(x, w.g_a, context.team), w.g_b, context.team)
