"""The KDA op against its token-by-token reference, spans of every kind in one call."""

from __future__ import annotations

import pytest
import torch

from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.kda import kda
from stepfuse.ops.kda.eager import plain_state, tiled_state
from stepfuse.ops.kda.ref import KdaState
from tests.support.implementations import each_implementation, running
from tests.support.kda_cases import (
    geometry,
    head_error,
    kda_tolerance,
    nan_view,
    plain,
    random_inputs,
    random_params,
    reference,
    rows_of,
    span,
)


@each_implementation
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (3, 64), (2, 128)])
def test_mixed_spans(which: Implementation, bound: float | None, heads: int, dim: int) -> None:
    g = geometry(heads, dim, bound)
    params, inputs = random_params(g), random_inputs(g, 41)
    view = nan_view(g, 6)
    states = {slot: KdaState.empty(params, torch.float64) for slot in (4, 1, 0)}
    wants = {}
    with running(which):
        # A first call gives slots 4 and 1 a past; the second mixes decode, chunk and fresh rows.
        kda(rows_of(inputs, slice(0, 5)), params, view, [span(0, 3, 4), span(3, 2, 1)])
        spans = [span(0, 1, 4, cached=3), span(1, 19, 1, cached=2), span(20, 16, 0)]
        out = kda(rows_of(inputs, slice(5, 41)), params, view, spans)
    reference(rows_of(inputs, slice(0, 3)), params, states[4])
    reference(rows_of(inputs, slice(3, 5)), params, states[1])
    for s in spans:
        part = slice(5 + s.start, 5 + s.start + s.rows)
        wants[s.slot] = reference(rows_of(inputs, part), params, states[s.slot])
        got = out[s.start : s.start + s.rows]
        assert head_error(got, wants[s.slot], g) <= kda_tolerance(g, 25), s
        state = plain(view.state[s.slot]).double()
        error = (state - states[s.slot].state).norm() / states[s.slot].state.norm()
        assert float(error) <= kda_tolerance(g, 25)
        assert torch.equal(view.conv[s.slot].double(), states[s.slot].window)
    assert torch.isnan(view.state[[2, 3, 5]]).all()


@each_implementation
def test_a_row_does_not_depend_on_the_others(which: Implementation) -> None:
    """Decode rows of eight sequences in one call, bit for bit as each alone."""
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 8)
    together, alone = nan_view(g, 8), nan_view(g, 8)
    with running(which):
        out = kda(inputs, params, together, [span(r, 1, 7 - r) for r in range(8)])
        for r in range(8):
            row = kda(rows_of(inputs, slice(r, r + 1)), params, alone, [span(0, 1, 7 - r)])
            assert torch.equal(out[r], row[0])
    assert torch.equal(together.state, alone.state)


@each_implementation
def test_caches_with_foreign_strides(which: Implementation) -> None:
    """Views into a pool whose slots are further apart than they are long, canaries between."""
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 5)
    dense = nan_view(g, 3)
    wide_state = torch.full((3, 2, *dense.state.shape[1:]), torch.nan)
    wide_conv = torch.full((3, 2, *dense.conv.shape[1:]), torch.nan, dtype=torch.bfloat16)
    view = type(dense)(wide_state[:, 0], wide_conv[:, 0])
    spans = [span(0, 4, 2), span(4, 1, 0)]
    with running(which):
        assert torch.equal(kda(inputs, params, view, spans), kda(inputs, params, dense, spans))
    assert torch.equal(view.state[2], dense.state[2])
    assert torch.isnan(wide_state[:, 1]).all()
    assert torch.isnan(wide_conv[:, 1].float()).all()


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_state_layout_is_a_permutation(dim: int) -> None:
    state = torch.randn(3, dim, dim)
    tiled = tiled_state(state)
    assert tiled.shape == (3, dim // 32, dim, 32)
    assert torch.equal(plain_state(tiled), state)
    assert tiled[1, dim // 32 - 1, 5, 7] == state[1, 5, dim - 32 + 7]
