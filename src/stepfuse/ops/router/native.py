"""Expert choice in the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.ops.native import floats, want

EXPERTS_MAX = 4096


def route(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """logits FP32 [R, E], bias FP32 [E] to (ids int32 [R, k] ascending, weights FP32 [R, k])."""
    rows, experts = logits.shape
    want(
        1 <= top_k <= experts <= EXPERTS_MAX and bias.shape == (experts,),
        f"route: top {top_k} of {experts} experts with a bias of {bias.numel()}; "
        f"1 <= k <= experts <= {EXPERTS_MAX} is possible",
    )
    ids = torch.empty((rows, top_k), dtype=torch.int32)
    weights = torch.empty((rows, top_k))
    call = _native.RouterCall()
    call.logits, call.bias = floats(logits, "logits"), floats(bias, "bias")
    call.ids, call.weights = ids.data_ptr(), weights.data_ptr()
    call.rows, call.experts, call.chosen = rows, experts, top_k
    call.scaling, call.renormalize = scaling, renormalize
    _native.route(call)
    return ids, weights
