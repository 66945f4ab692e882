"""Known ways KDA goes wrong in other engines, each with the right value from the recurrence."""

from __future__ import annotations

import pytest
import torch

from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.kda import KdaInputs, kda
from stepfuse.ops.kda.ref import KdaState, recur
from stepfuse.ops.views import StateView
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
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 64, 65])
def test_unbounded_gate_with_real_sizes_is_finite_and_equal(
    which: Implementation, tokens: int
) -> None:
    g = geometry(bound=None)
    params, inputs = random_params(g), random_inputs(g, tokens)
    # Per-token log decays from -0.001 to past -2661; 6e4 over a chunk; every third channel.
    params.a_log.fill_(1.0)
    inputs.decay[:, ::3] += torch.linspace(900, 1100, tokens).unsqueeze(1)
    inputs.decay[:, 1::3] -= 6
    view = nan_view(g, 1)
    with running(which):
        out = kda(inputs, params, view, [span(0, tokens, 0)])
    state = KdaState.empty(params, torch.float64)
    want = reference(inputs, params, state)
    assert torch.isfinite(out).all()
    assert head_error(out, want, g) <= kda_tolerance(g, tokens)
    error = (plain(view.state[0]).double() - state.state).norm() / state.state.norm()
    assert float(error) <= kda_tolerance(g, tokens)


@each_implementation
def test_one_strong_decay_among_weak_ones_keeps_the_weak_exact(which: Implementation) -> None:
    """The difference of two running sums near -40,000 must keep a decay of 0.01."""
    g = geometry(heads=1, bound=None)
    params, inputs = random_params(g), random_inputs(g, 15)
    params.a_log.zero_()
    params.dt_bias.zero_()
    inputs.decay.fill_(-5.0)
    inputs.decay[0:5] = 2661.0
    with running(which):
        out = kda(inputs, params, nan_view(g, 1), [span(0, 15, 0)])
    assert head_error(out, reference(inputs, params), g) <= kda_tolerance(g, 15)


@each_implementation
def test_two_packed_sequences_are_independent(which: Implementation) -> None:
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 128)
    view = nan_view(g, 4)
    with running(which):
        out = kda(inputs, params, view, [span(0, 63, 2), span(63, 65, 0)])
    for part in (slice(0, 63), slice(63, 128)):
        want = reference(rows_of(inputs, part), params)
        assert head_error(out[part], want, g) <= kda_tolerance(g, 65)
    assert torch.isfinite(view.state[[0, 2]]).all()
    assert torch.isnan(view.state[[1, 3]]).all()
    assert torch.isnan(view.conv[[1, 3]].float()).all()


@each_implementation
def test_a_zero_length_sequence_leaves_its_slot_unchanged(which: Implementation) -> None:
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 3)
    view = nan_view(g, 3)
    view.state[1].fill_(7.0)
    view.conv[1].fill_(3.0)
    spans = [span(0, 2, 0), span(2, 0, 1, cached=5), span(2, 0, 1, cached=0), span(2, 1, 2)]
    with running(which):
        out = kda(inputs, params, view, spans)
    assert torch.isfinite(out).all()
    assert (view.state[1] == 7.0).all()
    assert (view.conv[1] == 3.0).all()


@each_implementation
def test_one_token_fresh_starts_from_zero_and_a_continuation_does_not(
    which: Implementation,
) -> None:
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 2)
    view = nan_view(g, 1)
    first, second = rows_of(inputs, slice(0, 1)), rows_of(inputs, slice(1, 2))
    state = KdaState.empty(params, torch.float64)
    with running(which):
        fresh = kda(first, params, view, [span(0, 1, 0)])
        continued = kda(second, params, view, [span(0, 1, 0, cached=1)])
        restarted = kda(second, params, view, [span(0, 1, 0)])
    assert head_error(fresh, reference(first, params, state), g) <= kda_tolerance(g, 1)
    assert head_error(continued, reference(second, params, state), g) <= kda_tolerance(g, 2)
    assert head_error(restarted, reference(second, params), g) <= kda_tolerance(g, 1)
    assert not torch.allclose(continued, restarted)


@each_implementation
@pytest.mark.parametrize("cuts", [(5, 6), (16, 33, 34), (1, 2, 3), (40, 41)])
def test_prefill_then_decode_equals_token_by_token(
    which: Implementation, cuts: tuple[int, ...]
) -> None:
    """A prompt shorter than a chunk then one decode step, and a prompt over two chunks."""
    g = geometry()
    tokens = cuts[-1]
    params, inputs = random_params(g), random_inputs(g, tokens)
    view = nan_view(g, 1)
    parts, begin = [], 0
    with running(which):
        for end in cuts:
            rows = rows_of(inputs, slice(begin, end))
            parts.append(kda(rows, params, view, [span(0, end - begin, 0, cached=begin)]))
            begin = end
    state = KdaState.empty(params, torch.float64)
    want = reference(inputs, params, state)
    assert head_error(torch.cat(parts), want, g) <= kda_tolerance(g, tokens)
    error = (plain(view.state[0]).double() - state.state).norm() / state.state.norm()
    assert float(error) <= kda_tolerance(g, tokens)


@each_implementation
def test_the_error_term_uses_the_decayed_state(which: Implementation) -> None:
    """One channel by hand: S = 1 decays to d, then e = v - d k and S = d + beta k e."""
    g = geometry(heads=1, bound=None)
    params = random_params(g)
    params.conv.zero_()
    params.conv[:, 3] = 1.0
    params.a_log.zero_()
    params.dt_bias.zero_()
    zero = torch.zeros(1, g.width)
    inputs = KdaInputs(
        q=zero.clone(), k=zero.clone(), v=zero.clone(), decay=zero.clone(),
        beta=torch.zeros(1, 1), gate=zero.clone(),
    )  # fmt: skip
    inputs.q[0, 0] = inputs.k[0, 0] = inputs.v[0, 0] = 10.0
    view = nan_view(g, 1)
    view.state.zero_()
    view.conv.zero_()
    view.state[0, 0, 0, 0, 0] = 1.0
    with running(which):
        kda(inputs, params, view, [span(0, 1, 0, cached=1)])
    decayed = 0.5  # exp(-softplus(0))
    v = 10.0 / (1 + torch.exp(torch.tensor(-10.0, dtype=torch.float64)))
    want = decayed + 0.5 * (v - decayed)  # beta = sigmoid(0), k is a unit vector
    assert float(view.state[0, 0, 0, 0, 0]) == pytest.approx(float(want), rel=1e-6)


def test_the_reference_decays_before_it_reads() -> None:
    state = torch.eye(2, dtype=torch.float64)
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    decay = torch.log(torch.tensor([0.25, 0.5], dtype=torch.float64))
    out = recur(state, (one, one, 3 * one, decay, torch.tensor(0.5, dtype=torch.float64)))
    assert state.tolist() == [[0.25 + 0.5 * (3 - 0.25), 0.0], [0.0, 0.5]]
    assert out.tolist() == [0.25 + 0.5 * (3 - 0.25), 0.0]


@each_implementation
def test_the_conv_window_restarts_at_a_new_sequence(which: Implementation) -> None:
    g = geometry()
    params, inputs = random_params(g), random_inputs(g, 8)
    view = nan_view(g, 1)
    view.conv.fill_(100.0)
    with running(which):
        kda(inputs, params, view, [span(0, 8, 0)])
        again = kda(rows_of(inputs, slice(4, 8)), params, view, [span(0, 4, 0)])
    want = reference(rows_of(inputs, slice(4, 8)), params)
    assert head_error(again, want, g) <= kda_tolerance(g, 4)
    raw = torch.stack([inputs.q, inputs.k, inputs.v], dim=1)[5:8]
    assert torch.equal(view.conv[0], raw.to(torch.bfloat16))


@each_implementation
def test_slots_beyond_32_bit_offsets(which: Implementation) -> None:
    """Slot 1 of a pool whose slots lie past 2^31 elements: 64-bit index arithmetic."""
    g = geometry(heads=1)
    params, inputs = random_params(g), random_inputs(g, 2)
    per_slot = g.heads * g.dim * g.dim
    stride = 2**31 + 64
    # Sparse: only the touched pages of the 8 GiB mapping become memory.
    storage = torch.empty(stride + per_slot)
    state = storage.as_strided((2, 1, 1, 32, 32), (stride, per_slot, per_slot, 32, 1))
    conv = torch.zeros((2, 3, 3, g.width), dtype=torch.bfloat16)
    with running(which):
        out = kda(inputs, params, StateView(state, conv), [span(0, 2, 1)])
    assert head_error(out, reference(inputs, params), g) <= kda_tolerance(g, 2)
