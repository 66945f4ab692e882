"""Muon for matrices, AdamW for the rest: the better use of a short budget of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

# Embedding, head and small control tensors do not suit an orthogonal update.
_ADAM = ("embed_tokens", "lm_head", "conv1d", "f_a_proj", "f_b_proj", "b_proj", "_res_", ".gate.")


class Muon:
    """Momentum orthogonalised by Newton-Schulz, matrices of one shape taken together."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.lr, self.momentum = lr, momentum
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for p in params:
            self.groups[(p.shape[-2], p.shape[-1])].append(p)
        self.state = {s: _stack([torch.zeros_like(p) for p in g]) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, scale: float, grads: dict[nn.Parameter, torch.Tensor]) -> None:
        """One update with the learning rate times `scale`."""
        for shape, params in self.groups.items():
            grad = _stack([grads[p] for p in params])
            held = self.state[shape]
            held.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp_(held, self.momentum))
            lr = self.lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            at = 0
            for p in params:
                count = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - 0.05 * lr).sub_(update[at : at + count].view_as(p), alpha=lr)
                at += count


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.reshape(-1, t.shape[-2], t.shape[-1]) for t in tensors])


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Nearest orthogonal matrices [N, rows, cols], by five quintic Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        y = x @ x.mT
        z = torch.baddbmm(y, y, y, beta=b, alpha=c)
        x = torch.baddbmm(x, z, x, beta=a)
    return x.mT if tall else x


class Adam:
    """Adam for tables and controls, without weight decay."""

    def __init__(self, params: Iterable[tuple[nn.Parameter, float]]) -> None:
        self.params = list(params)
        self.first = [torch.zeros_like(p) for p, _ in self.params]
        self.second = [torch.zeros_like(p) for p, _ in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self, scale: float, grads: dict[nn.Parameter, torch.Tensor]) -> None:
        """One update with every learning rate times `scale`."""
        self.steps += 1
        fix1, fix2 = 1 - 0.9**self.steps, 1 - 0.98**self.steps
        for (p, lr), m, v in zip(self.params, self.first, self.second, strict=True):
            g = grads[p]
            m.lerp_(g, 0.1)
            v.mul_(0.98).addcmul_(g, g, value=0.02)
            p.addcdiv_(m, (v / fix2).sqrt_().add_(1e-10), value=-lr * scale / fix1)


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """Parameters for Muon, for AdamW as tables (embedding, head), and for AdamW as controls."""
    muon: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    controls: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if p.ndim >= 2 and not any(key in name for key in _ADAM):
            muon.append(p)
        elif "embed_tokens" in name or "lm_head" in name:
            tables.append(p)
        else:
            controls.append(p)
    return muon, tables, controls
