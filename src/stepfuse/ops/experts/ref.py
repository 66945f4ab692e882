"""Routed experts on plain weights, one row and one expert at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.linear.ref import activate, linear


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """`gate` and `up` [E, width, in], `down` [E, in, width]; any float type."""

    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class ExpertsTrace:
    """`hidden` [R, k, width] after the activation, `parts` [R, k, in] unweighted, `out` [R, in]."""

    hidden: Tensor
    parts: Tensor
    out: Tensor


def experts(
    x: Tensor,
    routing: tuple[Tensor, Tensor],
    weights: PlainExperts,
    activation: ActivationGeometry,
    rounding: Callable[[Tensor], Tensor] = lambda t: t,
) -> ExpertsTrace:
    """x [R, in], routing (ids [R, k], weights [R, k]). `rounding` is applied to product inputs."""
    ids, scale = routing
    rows, k = ids.shape
    hidden = x.new_empty((rows, k, weights.gate.shape[1]))
    parts = x.new_empty((rows, k, x.shape[1]))
    out = torch.zeros_like(x)
    for r in range(rows):
        for i in range(k):
            e = int(ids[r, i])
            source = rounding(x[r])
            gate = linear(source, weights.gate[e])
            hidden[r, i] = activate(gate, linear(source, weights.up[e]), activation)
            parts[r, i] = linear(rounding(hidden[r, i]), weights.down[e])
            out[r] += scale[r, i].to(x.dtype) * parts[r, i]
    return ExpertsTrace(hidden, parts, out)
