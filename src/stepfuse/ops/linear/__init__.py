"""Products with packed BF16 weights. Inputs are rounded to BF16, sums are FP32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.dispatch import implementation
from stepfuse.ops.packed import PackedGateUp, PackedHeads, PackedLinear

if TYPE_CHECKING:
    from stepfuse.ops.native import Team

__all__ = ["gate_up", "heads", "linear", "linear_fp32"]


def linear(x: Tensor, w: PackedLinear, team: Team | None = None) -> Tensor:
    """x FP32 [R, in] (rounded to BF16) times w [out, in], transposed, to FP32 [R, out]."""
    out: Tensor = implementation("linear").linear(x, w, team)
    return out


def linear_fp32(x: Tensor, w: PackedLinear, team: Team | None = None) -> Tensor:
    """As `linear` with x unrounded: the router, where BF16 inputs re-route about 5 % of tokens."""
    out: Tensor = implementation("linear").linear_fp32(x, w, team)
    return out


def gate_up(
    x: Tensor, w: PackedGateUp, activation: ActivationGeometry, team: Team | None = None
) -> Tensor:
    """x FP32 [R, in] to FP32 [R, width]: activation(gate x, up x).

    SiTU(g, u) = beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta); silu(g) * u else.
    """
    out: Tensor = implementation("linear").gate_up(x, w, activation, team)
    return out


def heads(x: Tensor, w: PackedHeads, team: Team | None = None) -> Tensor:
    """x FP32 [R, H, in] (rounded to BF16), one matrix [out, in] per head, to FP32 [R, H, out]."""
    out: Tensor = implementation("linear").heads(x, w, team)
    return out
