"""Kimi Delta Attention, token by token and head by head, as its definition reads.

Source: the recurrence of the Kimi-Linear report, with K3's lower-bound gate. Computes in the type
of its inputs (use float64 for the truth).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepfuse.core.config import KDA_L2_EPS
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.linear.ref import rounded
from stepfuse.ops.norm.ref import rms_norm


@dataclass(slots=True)
class KdaState:
    """`state` [H, dim (k), dim (v)]; `window` [3 past inputs (oldest first), 3 (q,k,v), C]."""

    state: Tensor
    window: Tensor

    @classmethod
    def empty(cls, params: KdaParams, dtype: torch.dtype) -> KdaState:
        g = params.geometry
        state = torch.zeros(g.heads, g.dim, g.dim, dtype=dtype)
        return cls(state, torch.zeros(g.conv_kernel - 1, 3, g.width, dtype=dtype))


@dataclass(slots=True)
class KdaTrace:
    """Per token: `q`, `k`, `v` [H, dim] after conv, SiLU and norm; `log_decay` [H, dim]; `beta`
    [H]; `raw` [H, dim] = S^T q; `out` [C] gated and normalised.
    """

    q: list[Tensor] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    log_decay: list[Tensor] = field(default_factory=list)
    beta: list[Tensor] = field(default_factory=list)
    raw: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)


def log_decay(z: Tensor, a_log: Tensor, lower_bound: float | None) -> Tensor:
    """z [H, dim] (decay + dt_bias), a_log [H] to log decays [H, dim], all at most 0."""
    rate = torch.exp(a_log.to(z.dtype)).unsqueeze(1)
    if lower_bound is not None:
        return lower_bound / (1 + torch.exp(-rate * z))
    return -rate * torch.logaddexp(z, torch.zeros_like(z))


def convolved(inputs: Tensor, window: Tensor, conv: Tensor) -> Tensor:
    """inputs [3, C], window [3 past, 3, C], conv [3, 4, C] to SiLU of the convolution [3, C]."""
    taps = conv.to(inputs.dtype)
    y = taps[:, -1] * inputs
    for past in range(window.shape[0]):
        y = y + taps[:, past] * window[past]
    return y / (1 + torch.exp(-y))


def unit(x: Tensor) -> Tensor:
    """x [H, dim] L2-normalised per head."""
    return x / torch.sqrt((x * x).sum(dim=1, keepdim=True) + KDA_L2_EPS)


def recur(state: Tensor, token: tuple[Tensor, ...]) -> Tensor:
    """One head and token: `state` [dim, dim] in place; token = (q, k, v, log_decay, beta)."""
    q, k, v, decay, beta = token
    state *= torch.exp(decay).unsqueeze(1)
    error = v - state.T @ k
    state += beta * torch.outer(k, error)
    return state.T @ q


def kda(
    inputs: KdaInputs, params: KdaParams, cache: KdaState, round_window: bool = True
) -> KdaTrace:
    """One sequence, all its rows; `cache` moves forward in place.

    `round_window` rounds the convolution's inputs to BF16, as the contract says; False is the
    unrounded model.
    """
    g = params.geometry
    trace = KdaTrace()
    for t in range(inputs.q.shape[0]):
        present = torch.stack([inputs.q[t], inputs.k[t], inputs.v[t]])
        if round_window:
            present = rounded(present)
        q, k, v = convolved(present, cache.window, params.conv).view(3, g.heads, g.dim)
        cache.window = torch.cat([cache.window[1:], present.unsqueeze(0)])
        q, k = unit(q) * g.dim**-0.5, unit(k)
        z = (inputs.decay[t] + params.dt_bias.to(q.dtype)).view(g.heads, g.dim)
        decay = log_decay(z, params.a_log, params.geometry.gate_lower_bound)
        beta = torch.sigmoid(inputs.beta[t])
        raw = torch.stack(
            [recur(cache.state[h], (q[h], k[h], v[h], decay[h], beta[h])) for h in range(g.heads)]
        )
        normed = rms_norm(raw, params.o_norm, params.norm_eps)
        out = normed.reshape(-1) * torch.sigmoid(inputs.gate[t])
        values = (q, k, v, decay, beta, raw, out)
        for name, value in zip(KdaTrace.__slots__, values, strict=True):
            getattr(trace, name).append(value)
    return trace
