"""The one place where PyTorch's untyped `Function.apply` gets a type."""

from __future__ import annotations

from typing import Any

import torch


def applied(function: type[torch.autograd.Function], *args: Any) -> torch.Tensor:
    """`function.apply(*args)`, for functions that return one tensor."""
    out: torch.Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return out
