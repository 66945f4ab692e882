"""RMSNorm and the attention-residual mix with hand-written gradients: few passes over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from training.k3_tiny.autograd import applied


class _Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        unit = x * _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return unit.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        inverse = _inverse_rms(x, ctx.eps)
        unit = x * inverse
        by_weight = (grads[0] * unit).flatten(0, -2).sum(0)
        grad = grads[0] * weight
        along = (grad * unit).mean(-1, keepdim=True)
        return grad.addcmul_(unit, along, value=-1.0).mul_(inverse), by_weight, None


class _Mix(torch.autograd.Function):
    """Softmax over sources of `v · s / rms(s)`, applied to the raw sources; `v` [hidden]."""

    @staticmethod
    def forward(ctx: Any, eps: float, v: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        inverse = torch.cat([_inverse_rms(s, eps) for s in sources], dim=-1)
        score = torch.stack([s @ v for s in sources], dim=-1) * inverse
        share = score.softmax(-1)
        ctx.save_for_backward(v, inverse, score, share, *sources)
        out = sources[0] * share[..., :1]
        for n in range(1, len(sources)):
            out.addcmul_(sources[n], share[..., n : n + 1])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        v, inverse, score, share, *sources = ctx.saved_tensors
        grad = grads[0]
        by_share = torch.stack([(grad * s).sum(-1) for s in sources], dim=-1)
        by_score = share * (by_share - (share * by_share).sum(-1, keepdim=True))
        along = by_score * inverse
        radial = by_score * score * inverse.square() / v.shape[0]
        by_v = torch.zeros_like(v)
        by_sources = []
        for n, s in enumerate(sources):
            one = slice(n, n + 1)
            by_v += s.flatten(0, -2).T @ along[..., n].flatten()
            out = (grad * share[..., one]).addcmul_(along[..., one], v)
            by_sources.append(out.addcmul_(radial[..., one], s, value=-1.0))
        return None, by_v, *by_sources


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean x² + eps) [..., 1]."""
    return (x * x).mean(-1, keepdim=True).add_(eps).rsqrt_()


class RmsNorm(nn.Module):
    """RMSNorm over the last axis with a learned weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return applied(_Rms, x, self.weight, self.eps)


def mix(
    prefix: torch.Tensor, bank: list[torch.Tensor], norm: RmsNorm, proj: nn.Linear
) -> torch.Tensor:
    """Softmax over the sources of `proj · RMSNorm(source)`, applied to the raw sources."""
    if not bank:
        return prefix
    return applied(_Mix, norm.eps, norm.weight * proj.weight[0], *bank, prefix)
