"""Latent mixture of experts for training: tokens sorted by expert, one product per expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from training.k3_tiny import mxfp4
from training.k3_tiny.autograd import applied
from training.k3_tiny.geometry import Geometry
from training.k3_tiny.norm import RmsNorm


class _Situ(torch.autograd.Function):
    """beta tanh(g/beta) sigmoid(g) · linear_beta tanh(u/linear_beta), saving only its inputs."""

    @staticmethod
    def forward(ctx: Any, g: torch.Tensor, u: torch.Tensor, betas: tuple[float, float]) -> Any:
        ctx.betas = betas
        a, b = _tanh(g, betas[0]), _tanh(u, betas[1])
        s = g.sigmoid()
        ctx.save_for_backward(a, b, s)
        return a * s * b * (betas[0] * betas[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        a, b, s = ctx.saved_tensors
        beta, linear = ctx.betas
        grad = grads[0] * s
        by_u = torch.addcmul(grad, -grad, b * b) * a * beta
        slope = (1 - a * a).addcmul_(a * beta, 1 - s)
        return grad * b * slope * linear, by_u, None


def _tanh(x: torch.Tensor, scale: float) -> torch.Tensor:
    """tanh(x / scale) as 2 sigmoid(2 x / scale) - 1, which PyTorch computes three times faster."""
    return (x * (2 / scale)).sigmoid_().mul_(2).sub_(1)


def situ(g: torch.Tensor, u: torch.Tensor, shape: Geometry) -> torch.Tensor:
    """K3's activation; `g` is the gate, `u` the linear part."""
    return applied(_Situ, g, u, (shape.beta, shape.linear_beta))


class _Grouped(torch.autograd.Function):
    """Rows [M, in] sorted by expert times that expert's weight [E, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, counts: list[int]) -> torch.Tensor:
        ctx.counts = counts
        ctx.save_for_backward(x, w)
        out = x.new_empty(len(x), w.shape[1])
        at = 0
        for e, count in enumerate(counts):
            torch.mm(x[at : at + count], w[e].T, out=out[at : at + count])
            at += count
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w = ctx.saved_tensors
        grad = grads[0].contiguous()
        by_x, by_w = torch.empty_like(x), torch.empty_like(w)
        at = 0
        for e, count in enumerate(ctx.counts):
            rows = slice(at, at + count)
            torch.mm(grad[rows], w[e], out=by_x[rows])
            torch.mm(grad[rows].T, x[rows], out=by_w[e])
            at += count
        return by_x, by_w, None


class _Send(torch.autograd.Function):
    """Each token's row copied to its k places in expert order; the way back is a sum."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor
    ) -> torch.Tensor:
        ctx.k = len(order) // len(x)
        ctx.save_for_backward(inverse)
        return x[order // ctx.k]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        rows = grads[0][inverse]
        return rows.view(-1, ctx.k, rows.shape[1]).sum(1), None, None


class _Return(torch.autograd.Function):
    """Rows back from expert order to token order; the way back is the same permutation."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(order)
        return x[inverse]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grads[0][order], None, None


class Mlp(nn.Module):
    """gate, up, down with SiTU; the dense layer and the shared experts."""

    def __init__(self, shape: Geometry, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.gate_proj = nn.Linear(shape.hidden, width, bias=False)
        self.up_proj = nn.Linear(shape.hidden, width, bias=False)
        self.down_proj = nn.Linear(width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(situ(self.gate_proj(x), self.up_proj(x), self.shape))
        return out


class Experts(nn.Module):
    """All routed experts of a layer: `w13` [E, 2·width, latent], `w2` [E, latent, width]."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        width = shape.expert_width
        self.w13 = nn.Parameter(torch.empty(shape.experts, 2 * width, shape.latent))
        self.w2 = nn.Parameter(torch.empty(shape.experts, shape.latent, width))


class Moe(nn.Module):
    """Router, routed experts in the latent, shared experts on the full width."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.shape = shape
        self.quantized = False
        self.gate = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.gate.register_buffer("e_score_correction_bias", torch.zeros(shape.experts))
        self.routed_expert_down_proj = nn.Linear(shape.hidden, shape.latent, bias=False)
        self.routed_expert_norm = RmsNorm(shape.latent, eps=shape.eps)
        self.routed_expert_up_proj = nn.Linear(shape.latent, shape.hidden, bias=False)
        self.experts = Experts(shape)
        self.shared_experts = Mlp(shape, shape.shared * shape.expert_width)
        self.load = torch.zeros(shape.experts)

    @property
    def bias(self) -> torch.Tensor:
        """Selection bias of the router [E], moved by `balance`."""
        bias = self.gate.e_score_correction_bias
        assert isinstance(bias, torch.Tensor)
        return bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        score = self.gate(flat).sigmoid()
        chosen = (score.detach() + self.bias).topk(self.shape.chosen, dim=-1).indices
        weight = score.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        self.load = torch.bincount(chosen.flatten(), minlength=self.shape.experts)
        sent = applied(_Send, self.routed_expert_down_proj(flat), order, inverse)
        rows = applied(_Return, self._experts(sent), order, inverse)
        rows = rows.view(-1, self.shape.chosen, rows.shape[1])
        latent = (rows * weight.unsqueeze(-1)).sum(1)
        routed: torch.Tensor = self.routed_expert_up_proj(self.routed_expert_norm(latent))
        shared: torch.Tensor = self.shared_experts(x)
        return shared + routed.view_as(x)

    def _experts(self, sent: torch.Tensor) -> torch.Tensor:
        w13: torch.Tensor = self.experts.w13
        w2: torch.Tensor = self.experts.w2
        if self.quantized:
            w13, w2 = mxfp4.rounded(w13), mxfp4.rounded(w2)
        counts = self.load.tolist()
        g, u = applied(_Grouped, sent, w13, counts).chunk(2, dim=-1)
        return applied(_Grouped, situ(g, u, self.shape), w2, counts)

    def balance(self, load: torch.Tensor, rate: float) -> None:
        """Raise the bias of experts chosen less than the mean of `load` [E], lower the others."""
        self.bias.add_(torch.sign(load.mean() - load), alpha=rate)
        self.bias.sub_(self.bias.mean())
