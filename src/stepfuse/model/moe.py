"""Feed-forward parts: the dense MLP, and routed experts (in a latent for K3) with a shared one."""

from __future__ import annotations

from torch import Tensor

from stepfuse.model.context import Context
from stepfuse.ops.experts import experts
from stepfuse.ops.linear import gate_up, linear, linear_fp32
from stepfuse.ops.norm import rms_norm
from stepfuse.ops.router import route
from stepfuse.weights.store import DenseWeights, MoeWeights


def dense(x: Tensor, w: DenseWeights, context: Context) -> Tensor:
    """x FP32 [R, hidden] to FP32 [R, hidden]."""
    hidden = gate_up(x, w.gate_up, context.geometry.activation, context.team)
    return linear(hidden, w.down, context.team)


def moe(x: Tensor, w: MoeWeights, context: Context) -> Tensor:
    """x FP32 [R, hidden] to FP32 [R, hidden]: routed experts plus the shared expert."""
    routed = _routed(x, w, context)
    if w.shared_gate_up is None or w.shared_down is None:
        return routed
    hidden = gate_up(x, w.shared_gate_up, context.geometry.activation, context.team)
    return routed + linear(hidden, w.shared_down, context.team)


def _routed(x: Tensor, w: MoeWeights, context: Context) -> Tensor:
    """The weighted sum of the chosen experts, back on the hidden width."""
    geometry, team = context.geometry, context.team
    moe_shape = geometry.moe
    logits = linear_fp32(x, w.router, team)
    ids, weights = route(
        logits, w.bias, moe_shape.top_k, moe_shape.routed_scaling, moe_shape.renormalize
    )
    source = x if w.latent_down is None else linear(x, w.latent_down, team)
    mixed = experts(source, ids, weights, w.experts, geometry.activation, team)
    if w.latent_norm is not None:
        mixed = rms_norm(mixed, w.latent_norm, geometry.norm_eps)
    return mixed if w.latent_up is None else linear(mixed, w.latent_up, team)
