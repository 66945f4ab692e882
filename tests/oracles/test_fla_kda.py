"""KDA against fla: naive recurrence, chunked form and gates; stored always, live if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.kda import KdaInputs, KdaParams, kda
from stepfuse.ops.kda.ref import KdaState, log_decay
from stepfuse.ops.kda.ref import kda as kda_ref
from stepfuse.ops.norm.ref import rms_norm
from tests.golden.make_fla_kda import DIM, GATES, HEADS, TOKENS, fla_outputs, inputs
from tests.support.implementations import each_implementation, running
from tests.support.kda_cases import as_fp64, geometry, head_error, nan_view, plain, span
from tests.support.tolerance import U_FP32, U_GATE

STORED = Path(__file__).parents[1] / "golden" / "fla_kda.npz"
# Two FP32 results apart: sums over dim and over the tokens behind, twice.
BOUND = 2 * ((DIM + 4 * TOKENS) * U_FP32 + 8 * U_GATE)
each_gate = pytest.mark.parametrize("gate", list(GATES))
each_form = pytest.mark.parametrize("form", ["recurrent", "chunk"])


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    with np.load(STORED) as file:
        return {k: torch.from_numpy(v) for k, v in file.items() if v.dtype == np.float32}


def _case(gate: str) -> tuple[KdaInputs, KdaParams]:
    """The oracle's inputs as the op takes them: a convolution that passes its present input."""
    x = inputs()
    g = geometry(HEADS, DIM, GATES[gate])
    conv = torch.zeros(3, 4, g.width)
    conv[:, 3] = 1.0
    params = KdaParams(conv, x["a_log"], x["dt_bias"], torch.ones(DIM), g, 1e-5)
    flat = [x[name].reshape(TOKENS, -1) for name in ("q", "k", "v", "z")]
    return KdaInputs(*flat, x["beta"], torch.zeros(TOKENS, g.width)), params


@each_gate
def test_gates(gate: str, stored: Mapping[str, Tensor]) -> None:
    x = inputs()
    z = x["z"].double() + x["dt_bias"].double().view(HEADS, DIM)
    got = torch.stack([log_decay(t, x["a_log"], GATES[gate]) for t in z])
    want = stored[f"{gate}.g"].double()
    assert float(want.min()) == pytest.approx(-5.0) or float(want.min()) < -2661
    # z itself is rounded to FP32 by the oracle, and -5 sigmoid(a z) moves by 1.25 a per unit of z.
    moved = x["a_log"].exp().max() * z.abs() * U_FP32 * 5
    assert ((got - want).abs() <= moved + 4 * U_FP32 * want.abs() + U_FP32).all()


@each_gate
@each_form
def test_the_reference_is_fla(gate: str, form: str, stored: Mapping[str, Tensor]) -> None:
    x, params = _case(gate)
    state = KdaState.empty(params, torch.float64)
    state.state = inputs()["initial"].double()
    trace = kda_ref(as_fp64(x), params, state)
    want = stored[f"{gate}.{form}.o"].double().flatten(1)
    assert head_error(torch.stack(trace.raw).flatten(1), want, params.geometry) <= BOUND
    final = stored[f"{gate}.{form}.state"].double()
    assert float((state.state - final).norm() / final.norm()) <= BOUND


@each_implementation
@each_gate
@pytest.mark.parametrize("cuts", [(TOKENS,), (3, 1, 40, 20)])
def test_the_op_is_fla(
    which: Implementation, gate: str, cuts: tuple[int, ...], stored: Mapping[str, Tensor]
) -> None:
    """fla's outputs through the gated norm, which the op applies itself."""
    x, params = _case(gate)
    view = nan_view(params.geometry, 1)
    view.conv.zero_()
    view.state[0] = torch.stack(inputs()["initial"].split(32, dim=-1), dim=1)
    parts, begin = [], 0
    with running(which):
        for rows in cuts:
            part = KdaInputs(*(t[begin : begin + rows] for t in _fields(x)))
            # One token is cached: a fresh span would zero the initial state.
            parts.append(kda(part, params, view, [span(0, rows, 0, cached=begin + 1)]))
            begin += rows
    raw = stored[f"{gate}.recurrent.o"].double()
    want = rms_norm(raw, params.o_norm, params.norm_eps).flatten(1) * 0.5
    assert head_error(torch.cat(parts), want, params.geometry) <= BOUND
    final = stored[f"{gate}.recurrent.state"].double()
    assert float((plain(view.state[0]).double() - final).norm() / final.norm()) <= BOUND


def _fields(x: KdaInputs) -> tuple[Tensor, ...]:
    return (x.q, x.k, x.v, x.decay, x.beta, x.gate)


def test_live_fla_gives_what_is_stored(stored: Mapping[str, Tensor]) -> None:
    if importlib.util.find_spec("fla") is None or importlib.util.find_spec("einops") is None:
        pytest.skip("the oracles extra is not installed")
    for name, value in fla_outputs(inputs()).items():
        assert torch.allclose(value, stored[name], rtol=1e-5, atol=1e-6), name
