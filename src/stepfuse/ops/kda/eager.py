"""Kimi Delta Attention in batched PyTorch: one token by the recurrence, more by chunks.

Chunked form (the WY representation of the delta rule with per-channel decay): in a chunk of C
tokens with cumulative log decays G_t and start state S,
  u_t = beta_t (v_t - S^T (e^{G_t} k_t) - sum_{i<t} A_ti u_i),  A_ti = sum_d k_t k_i e^{G_t - G_i}
  o_t = S^T (e^{G_t} q_t) + sum_{i<=t} B_ti u_i,                B_ti = sum_d q_t k_i e^{G_t - G_i}
  S' = e^{G_C} S + sum_i (e^{G_C - G_i} k_i) u_i^T.
Only differences G_t - G_i with i <= t, which are never positive, meet an exponential, so unbounded
gates cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stepfuse.core.config import KDA_L2_EPS
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.views import Span, StateView

# Tokens of a chunk: the [C, C, dim] table of decay differences is what bounds it (16 tokens of 96
# heads of 128 in FP64: 25 MB).
CHUNK_TOKENS = 16
_STATE_TILE = 32


def plain_state(tiled: Tensor) -> Tensor:
    """[..., dim/32, dim (k), 32 (v)] to [..., dim (k), dim (v)]."""
    *lead, tiles, dim, inner = tiled.shape
    return tiled.transpose(-3, -2).reshape(*lead, dim, tiles * inner)


def tiled_state(plain: Tensor) -> Tensor:
    """Inverse of `plain_state`."""
    *lead, dim, width = plain.shape
    tiles = plain.reshape(*lead, dim, width // _STATE_TILE, _STATE_TILE)
    return tiles.transpose(-3, -2).contiguous()


def log_decay(decay: Tensor, params: KdaParams) -> Tensor:
    """[R, C] projections to log decays [R, H, dim]."""
    g = params.geometry
    z = (decay + params.dt_bias).view(-1, g.heads, g.dim)
    rate = params.a_log.exp().view(1, g.heads, 1)
    if g.gate_lower_bound is not None:
        return g.gate_lower_bound * torch.sigmoid(rate * z)
    return -rate * F.softplus(z)


def _convolve(inputs: Tensor, window: Tensor, conv: Tensor) -> tuple[Tensor, Tensor]:
    """inputs BF16 [T, 3, C] and window BF16 [3, 3, C] to (SiLU FP32 [T, 3, C], new window)."""
    padded = torch.cat([window, inputs])
    rows = inputs.shape[0]
    taps = conv.shape[1]
    y = sum(padded[j : j + rows].float() * conv[:, j] for j in range(taps))
    return F.silu(torch.as_tensor(y)), padded[rows:]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + KDA_L2_EPS)


def _one_token(state: Tensor, qkv: tuple[Tensor, ...], g: Tensor, beta: Tensor) -> Tensor:
    """state [H, D, D] in place; qkv and g [H, D], beta [H]; returns o [H, D]."""
    q, k, v = qkv
    state *= g.exp().unsqueeze(-1)
    error = v - torch.einsum("hkv,hk->hv", state, k)
    state += torch.einsum("hk,hv->hkv", k, error * beta.unsqueeze(-1))
    return torch.einsum("hkv,hk->hv", state, q)


def _one_chunk(state: Tensor, qkv: tuple[Tensor, ...], g: Tensor, beta: Tensor) -> Tensor:
    """state [H, D, D] in place; qkv and g [H, T, D], beta [H, T]; returns o [H, T, D]."""
    q, k, v = qkv
    # FP64: the difference of two sums near -40,000 must keep a decay of 0.01 to FP32's precision.
    total = g.double().cumsum(dim=1)
    between = total.unsqueeze(2) - total.unsqueeze(1)
    tokens = g.shape[1]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    ratio = between.float().masked_fill_(~causal.view(1, tokens, tokens, 1), -torch.inf).exp_()
    among_k = torch.einsum("htd,hsd,htsd->hts", k, k, ratio) * beta.unsqueeze(-1)
    among_q = torch.einsum("htd,hsd,htsd->hts", q, k, ratio)
    from_start = total.float().exp()
    rest = (v - (k * from_start) @ state) * beta.unsqueeze(-1)
    lower = among_k.tril(-1)
    u: Tensor = torch.linalg.solve_triangular(lower, rest, upper=False, unitriangular=True)
    out: Tensor = (q * from_start) @ state + among_q @ u
    state *= from_start[:, -1].unsqueeze(-1)
    state += (k * ratio[:, -1]).transpose(1, 2) @ u
    return out


def _attend(state: Tensor, mixed: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """state [H, D, D] in place; mixed [T, 3, H, D], g [T, H, D], beta [T, H]; o [T, H, D]."""
    q, k, v = mixed.unbind(dim=1)
    q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
    if g.shape[0] == 1:
        return _one_token(state, (q[0], k[0], v[0]), g[0], beta[0]).unsqueeze(0)
    parts = []
    for begin in range(0, g.shape[0], CHUNK_TOKENS):
        part = slice(begin, begin + CHUNK_TOKENS)
        qkv = tuple(x[part].transpose(0, 1) for x in (q, k, v))
        out = _one_chunk(state, qkv, g[part].transpose(0, 1), beta[part].T)
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


def _finish(raw: Tensor, gate: Tensor, params: KdaParams) -> Tensor:
    """raw [R, H, D] and gate [R, C] to the gated RMS norm [R, C]."""
    inverse = torch.rsqrt(raw.square().mean(dim=-1, keepdim=True) + params.norm_eps)
    return (raw * inverse * params.o_norm).flatten(1) * torch.sigmoid(gate)


def kda(
    inputs: KdaInputs,
    params: KdaParams,
    view: StateView,
    spans: Sequence[Span],
    team: object = None,  # noqa: ARG001
) -> Tensor:
    """See `stepfuse.ops.kda.kda`."""
    geometry = params.geometry
    rows = inputs.q.shape[0]
    qkv = torch.stack([inputs.q, inputs.k, inputs.v], dim=1).to(torch.bfloat16)
    g, beta = log_decay(inputs.decay, params), torch.sigmoid(inputs.beta)
    raw = inputs.q.new_empty((rows, geometry.heads, geometry.dim))
    for span in spans:
        if span.rows == 0:
            continue
        if span.cached == 0:
            view.state[span.slot].zero_()
            view.conv[span.slot].zero_()
        part = slice(span.start, span.start + span.rows)
        mixed, window = _convolve(qkv[part], view.conv[span.slot], params.conv)
        view.conv[span.slot] = window
        state = plain_state(view.state[span.slot]).clone()
        mixed = mixed.view(span.rows, 3, geometry.heads, geometry.dim)
        raw[part] = _attend(state, mixed, g[part], beta[part])
        view.state[span.slot] = tiled_state(state)
    return _finish(raw, inputs.gate, params)
