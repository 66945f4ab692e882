"""Error bounds computed from dtype and accumulation length, and error measures."""

from __future__ import annotations

import torch
from torch import Tensor

# Relative error of one rounding to nearest.
U_FP32 = 2.0**-24
U_BF16 = 2.0**-9
U_E4M3 = 2.0**-4
# Relative error of one exponential, sigmoid or tanh: what the vectorised ones are built to.
U_GATE = 4e-7


def product_bound(x: Tensor, weight: Tensor) -> Tensor:
    """Worst error of x @ weight^T summed in FP32 in any order: K u sum |x w|; x [.., K]."""
    length = weight.shape[-1]
    return (length + 1) * U_FP32 * (x.abs().double() @ weight.abs().double().T)


def relative_error(got: Tensor, want: Tensor) -> Tensor:
    """Per row, ||got - want|| / ||want|| over the last dimension, in FP64."""
    difference = (got.double() - want.double()).norm(dim=-1)
    return difference / want.double().norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)


def assert_within(got: Tensor, want: Tensor, bound: Tensor | float) -> None:
    """Every element finite and within `bound` of `want`; names the worst element."""
    assert got.shape == want.shape, (got.shape, want.shape)
    excess = (got.double() - want.double()).abs() - torch.as_tensor(bound)
    assert bool(torch.isfinite(got).all()), "not finite"
    worst = int(excess.argmax())
    assert float(excess.max()) <= 0, (
        f"element {worst} of {tuple(got.shape)}: got {got.flatten()[worst]}, "
        f"want {want.flatten()[worst]}, {float(excess.max()):.3g} beyond the bound"
    )
