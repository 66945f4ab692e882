"""Matrix products and gated activations on plain weights, in the precision of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry


def rounded(x: Tensor) -> Tensor:
    """x rounded to BF16, in its own type: what a product with a BF16 weight sees."""
    return x.to(torch.bfloat16).to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in], weight [out, in] to [..., out], in x's type."""
    return x @ weight.to(x.dtype).T


def activate(gate: Tensor, up: Tensor, activation: ActivationGeometry) -> Tensor:
    """SiTU or SwiGLU of two tensors of one shape."""
    if activation.kind == "silu":
        return gate * torch.sigmoid(gate) * up
    beta, linear_beta = activation.beta, activation.linear_beta
    situ = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return situ * linear_beta * torch.tanh(up / linear_beta)
