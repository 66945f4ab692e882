"""Products with packed weights in PyTorch: unpack, round the input, multiply in FP32."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.packed import (
    PackedGateUp,
    PackedHeads,
    PackedLinear,
    split_gate_up,
    unpack_rows,
)


def as_bf16(data: Tensor) -> Tensor:
    """Packed bits as BF16, whether they are stored as BF16 or as 16-bit patterns."""
    return data if data.dtype == torch.bfloat16 else data.view(torch.bfloat16)


def rounded(x: Tensor) -> Tensor:
    """x rounded to BF16, held in FP32."""
    return x.to(torch.bfloat16).float()


def activate(gate: Tensor, up: Tensor, activation: ActivationGeometry) -> Tensor:
    """SiTU or SwiGLU."""
    if activation.kind == "silu":
        return torch.nn.functional.silu(gate) * up
    soft = torch.tanh(gate / activation.beta).mul_(activation.beta).mul_(torch.sigmoid(gate))
    return soft * (torch.tanh(up / activation.linear_beta) * activation.linear_beta)


def linear(x: Tensor, w: PackedLinear, team: object = None) -> Tensor:
    """x [R, in], rounded to BF16, to [R, out]."""
    return linear_fp32(rounded(x), w, team)


def linear_fp32(x: Tensor, w: PackedLinear, team: object = None) -> Tensor:  # noqa: ARG001
    """x [R, in], unrounded, to [R, out]."""
    weight = unpack_rows(as_bf16(w.data), w.out_features).float()
    return x @ weight.T


def gate_up(
    x: Tensor,
    w: PackedGateUp,
    activation: ActivationGeometry,
    team: object = None,  # noqa: ARG001
) -> Tensor:
    """x [R, in] to [R, width]."""
    tiles = as_bf16(w.data)
    both = unpack_rows(tiles, tiles.shape[0] * tiles.shape[2])
    gate, up = split_gate_up(both, w.width)
    x = rounded(x)
    return activate(x @ gate.float().T, x @ up.float().T, activation)


def heads(x: Tensor, w: PackedHeads, team: object = None) -> Tensor:  # noqa: ARG001
    """x [R, H, in] to [R, H, out]."""
    weight = unpack_rows(as_bf16(w.data), w.out_features).float()
    return torch.einsum("rhk,hnk->rhn", rounded(x), weight)
