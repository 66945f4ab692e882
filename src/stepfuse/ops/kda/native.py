"""Kimi Delta Attention in the native core, token by token and in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.native import Team, address, check_range, floats, span_rows, want
from stepfuse.ops.views import Span, StateView

HEAD_DIM_MAX = 512
_DIM_STEP = 32


def _check(params: KdaParams, view: StateView) -> None:
    g = params.geometry
    want(
        g.dim % _DIM_STEP == 0 and g.dim <= HEAD_DIM_MAX and g.conv_kernel == 4,
        f"kda: head dim {g.dim}, convolution width {g.conv_kernel}; the kernels want a multiple "
        f"of {_DIM_STEP} up to {HEAD_DIM_MAX}, and 4",
    )
    shape = (g.heads, g.dim // _DIM_STEP, g.dim, _DIM_STEP)
    want(
        view.state.shape[1:] == shape and view.conv.shape[1:] == (3, 3, g.width),
        f"kda: state {tuple(view.state.shape)}, window {tuple(view.conv.shape)}; the geometry "
        f"wants {shape} and {(3, 3, g.width)} per slot",
    )


def _bind_params(call: _native.KdaCall, params: KdaParams) -> None:
    call.conv_weight, call.a_log = floats(params.conv, "conv"), floats(params.a_log, "a_log")
    call.dt_bias = floats(params.dt_bias, "dt_bias")
    call.norm_weight = floats(params.o_norm, "o_norm")
    call.heads, call.dim = params.geometry.heads, params.geometry.dim
    call.gate_lower_bound = params.geometry.gate_lower_bound or 0.0
    call.norm_eps = params.norm_eps


def _bind_inputs(call: _native.KdaCall, inputs: KdaInputs) -> None:
    call.q, call.k, call.v = (floats(x, "qkv") for x in (inputs.q, inputs.k, inputs.v))
    call.decay, call.beta = floats(inputs.decay, "decay"), floats(inputs.beta, "beta")
    call.gate = floats(inputs.gate, "gate")


def kda(
    inputs: KdaInputs,
    params: KdaParams,
    view: StateView,
    spans: Sequence[Span],
    team: Team | None = None,
) -> Tensor:
    """See `stepfuse.ops.kda.kda`."""
    _check(params, view)
    table = span_rows(spans)
    out = torch.empty_like(inputs.q)
    call = _native.KdaCall()
    _bind_params(call, params)
    _bind_inputs(call, inputs)
    if len(table) == 0:
        return out
    check_range(table[:, 2], view.state.shape[0], "slot")
    call.state = floats(view.state[0], "state")
    call.conv_state = address(view.conv[0], torch.bfloat16, "window")
    call.state_stride, call.conv_stride = view.state.stride(0), view.conv.stride(0)
    call.spans, call.span_count = table.ctypes.data, len(table)
    call.out = floats(out, "out")
    _native.kda(call, team)
    return out
