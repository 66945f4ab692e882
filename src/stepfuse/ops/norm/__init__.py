"""RMS norm: each row divided by its root mean square, times a weight."""

from __future__ import annotations

from torch import Tensor

from stepfuse.ops.dispatch import implementation

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x FP32 [R, n], weight BF16 [n] to FP32 [R, n]: x / sqrt(mean(x^2) + eps) * weight."""
    out: Tensor = implementation("norm").rms_norm(x, weight, eps)
    return out
