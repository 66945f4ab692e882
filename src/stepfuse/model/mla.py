"""An MLA layer with W_UK absorbed into q and W_UV applied after attention. No rotation (NoPE)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import MLA_LATENT_NORM_EPS
from stepfuse.model.context import Context
from stepfuse.ops.linear import heads, linear
from stepfuse.ops.mla import latent_write, mla
from stepfuse.ops.norm import rms_norm
from stepfuse.ops.views import LatentView
from stepfuse.weights.store import MlaWeights


def mla_attention(x: Tensor, w: MlaWeights, view: LatentView, context: Context) -> Tensor:
    """x FP32 [R, hidden] (normalised) to FP32 [R, hidden]; the rows' latents are cached first."""
    geometry, team = context.geometry.mla, context.team
    latent, pe = _latent(x, w, context)
    latent_write(latent, pe, view, context.spans)
    q = _queries(x, w, context).view(-1, geometry.heads, geometry.nope + geometry.rope)
    q_latent = heads(q[..., : geometry.nope].contiguous(), w.w_uk, team)
    q_pe = q[..., geometry.nope :].contiguous()
    scale = (geometry.nope + geometry.rope) ** -0.5
    mixed = mla(q_latent, q_pe, view, context.spans, scale, team)
    out = heads(mixed, w.w_uv, team).flatten(1)
    if w.g is not None:
        out = out * torch.sigmoid(linear(x, w.g, team))
    return linear(out, w.o, team)


def _latent(x: Tensor, w: MlaWeights, context: Context) -> tuple[Tensor, Tensor]:
    """What is cached: the normalised latent [R, L] and pe [R, P]."""
    both = linear(x, w.kv_a, context.team)
    rank = context.geometry.mla.kv_lora
    latent = rms_norm(both[:, :rank].contiguous(), w.kv_a_norm, MLA_LATENT_NORM_EPS)
    return latent, both[:, rank:].contiguous()


def _queries(x: Tensor, w: MlaWeights, context: Context) -> Tensor:
    """[R, heads * (nope + rope)], through q_lora where the member has it."""
    if w.q_a is None:
        return linear(x, w.q_b, context.team)
    assert w.q_a_norm is not None
    low = rms_norm(linear(x, w.q_a, context.team), w.q_a_norm, MLA_LATENT_NORM_EPS)
    return linear(low, w.q_b, context.team)
