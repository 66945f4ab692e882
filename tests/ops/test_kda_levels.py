"""Kimi Delta Attention on every level against the FP64 recurrence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.core.config import KdaGeometry
from stepfuse.core.errors import NativeError
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.kda import native as kda_native
from stepfuse.ops.kda.eager import plain_state, tiled_state
from stepfuse.ops.kda.ref import KdaState
from stepfuse.ops.kda.ref import kda as kda_ref
from stepfuse.ops.kda.ref import log_decay as log_decay_ref
from stepfuse.ops.views import Span, StateView
from tests.support.levels import U32, each_level, on_level, same_bits, teams

NO_PAGES = np.zeros(0, np.int32)
SLOTS = 4


class Case:
    """Random parameters, inputs of `rows` rows, and caches of SLOTS slots."""

    def __init__(self, heads: int, dim: int, bound: float | None, rows: int, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        geometry = KdaGeometry(heads, dim, 4, 8, None, bound)
        width = heads * dim
        self.params = KdaParams(
            self.randn(3, 4, width) * 0.5,
            self.randn(heads) * 0.5,
            self.randn(width),
            1 + 0.1 * self.randn(dim),
            geometry,
            1e-5,
        )
        qkv = [self.randn(rows, width) for _ in range(4)]
        self.inputs = KdaInputs(*qkv, self.randn(rows, heads), self.randn(rows, width))
        self.state = self.randn(SLOTS, heads, dim // 32, dim, 32) * 0.3
        self.conv = self.randn(SLOTS, 3, 3, width).to(torch.bfloat16)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def view(self) -> StateView:
        return StateView(self.state.clone(), self.conv.clone())

    def part(self, begin: int, end: int) -> KdaInputs:
        i = self.inputs
        parts = (i.q, i.k, i.v, i.decay, i.beta, i.gate)
        return KdaInputs(*(x[begin:end].contiguous() for x in parts))

    def double(self, begin: int, end: int) -> tuple[KdaInputs, KdaParams]:
        i, p = self.part(begin, end), self.params
        inputs = KdaInputs(*(x.double() for x in (i.q, i.k, i.v, i.decay, i.beta, i.gate)))
        weights = (p.conv, p.a_log, p.dt_bias, p.o_norm)
        return inputs, KdaParams(*(x.double() for x in weights), p.geometry, p.norm_eps)


@each_level
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (3, 64), (12, 32), (2, 128)])
def test_against_the_recurrence(level: str, heads: int, dim: int, bound: float | None) -> None:
    rows = 7
    case, view = Case(heads, dim, bound, rows), None
    spans = [Span(0, 4, 2, 0, NO_PAGES), Span(4, 0, 1, 9, NO_PAGES), Span(4, 3, 3, 5, NO_PAGES)]
    view = case.view()
    with on_level(level):
        out = kda_native.kda(case.inputs, case.params, view, spans)
    for span in (spans[0], spans[2]):
        inputs, params = case.double(span.start, span.start + span.rows)
        cache = KdaState.empty(params, torch.float64)
        if span.cached:
            cache.state = plain_state(case.state[span.slot]).double()
            cache.window = case.conv[span.slot].double()
        trace = kda_ref(inputs, params, cache)
        # A token sums dim products three times over; the norm behind it keeps relative errors.
        state_bound = span.rows * (3 * dim + 32) * U32
        got = plain_state(view.state[span.slot])
        assert (got - cache.state).abs().max() <= state_bound * cache.state.abs().max()
        for t in range(span.rows):
            size = trace.raw[t].abs().amax(dim=1, keepdim=True).clamp(min=1e-3)
            gain = (size / trace.raw[t].square().mean(dim=1, keepdim=True).sqrt()).max()
            error = (out[span.start + t] - trace.out[t]).abs().max()
            assert error <= (t + 1) * (6 * dim + 64) * U32 * gain * trace.out[t].abs().max() * 2
        want = cache.window.to(torch.bfloat16)
        assert torch.equal(view.conv[span.slot], want)
    for slot in (0, 1):
        assert same_bits(view.state[slot], case.state[slot])
        assert torch.equal(view.conv[slot], case.conv[slot])


@each_level
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_rows_batches_and_threads_agree_bit_for_bit(level: str, heads: int) -> None:
    case = Case(heads, 32, -5.0, 9)
    spans = [Span(0, 6, 0, 3, NO_PAGES), Span(6, 1, 1, 0, NO_PAGES), Span(7, 2, 2, 0, NO_PAGES)]
    one, alone = case.view(), []
    with on_level(level):
        for span in spans:
            for t in range(span.rows):
                row = span.start + t
                step = [Span(0, 1, span.slot, span.cached + t, NO_PAGES)]
                alone.append(kda_native.kda(case.part(row, row + 1), case.params, one, step))
        for team in teams():
            view = case.view()
            out = kda_native.kda(case.inputs, case.params, view, spans, team)
            assert same_bits(out, torch.cat(alone))
            assert same_bits(view.state, one.state)
            assert torch.equal(view.conv, one.conv)


@each_level
@pytest.mark.parametrize("bound", [None, -5.0])
def test_decays_over_the_whole_range(level: str, bound: float | None) -> None:
    """With k = 0 the state only decays; reaches log decays far below -2661."""
    case = Case(2, 64, bound, 1)
    zeros = torch.zeros(1, 128)
    z = torch.cat(
        [
            torch.linspace(-90, 90, 120),
            torch.tensor([-1e4, 2661.0, 1e5, 0, 5e-3, -5e-3, 1e30, -1e30]),
        ]
    )
    inputs = KdaInputs(zeros, zeros, zeros, z.view(1, 128), torch.zeros(1, 2), zeros)
    case.params.dt_bias.zero_()
    case.conv.zero_()
    view = StateView(torch.ones_like(case.state), case.conv.clone())
    with on_level(level):
        out = kda_native.kda(inputs, case.params, view, [Span(0, 1, 0, 4, NO_PAGES)])
    log_decay = log_decay_ref(z.double().view(2, 64), case.params.a_log, bound)
    want = log_decay.exp().unsqueeze(-1).expand(2, 64, 64)
    # An error of 6 u in the gate becomes |log decay| times that in the decay.
    bound_of = (log_decay.abs() * 8 + 8).unsqueeze(-1) * U32 * want + 2.0**-149
    got = plain_state(view.state[0])
    assert got.isfinite().all()
    assert ((got - want).abs() <= bound_of).all()
    assert torch.equal(out, zeros)
    assert not got[want < 2.0**-151].any()


@each_level
def test_a_strided_pool_is_bound_in_place(level: str) -> None:
    case = Case(3, 32, -5.0, 2)
    spans = [Span(0, 1, 1, 3, NO_PAGES), Span(1, 1, 3, 3, NO_PAGES)]
    plain = case.view()
    wide = StateView(
        torch.full((SLOTS, 2, *case.state.shape[1:]), 7.0)[:, 0],
        torch.full((SLOTS, 2, *case.conv.shape[1:]), 7.0, dtype=torch.bfloat16)[:, 0],
    )
    wide.state.copy_(case.state)
    wide.conv.copy_(case.conv)
    with on_level(level):
        first = kda_native.kda(case.inputs, case.params, plain, spans)
        second = kda_native.kda(case.inputs, case.params, wide, spans)
    assert same_bits(first, second)
    assert same_bits(wide.state, plain.state)
    assert torch.equal(wide.conv, plain.conv)


@each_level
def test_nan_stays_in_its_sequence(level: str) -> None:
    case = Case(2, 32, -5.0, 2)
    case.inputs.v[0] = torch.nan
    view = case.view()
    with on_level(level):
        spans = [Span(0, 1, 0, 3, NO_PAGES), Span(1, 1, 1, 3, NO_PAGES)]
        out = kda_native.kda(case.inputs, case.params, view, spans)
    assert out[0].isnan().any()
    assert out[1].isfinite().all()
    assert view.state[1].isfinite().all()


def test_shapes_and_slots_are_refused() -> None:
    case = Case(2, 32, -5.0, 1)
    with pytest.raises(NativeError, match=r"slot 4\.\.4"):
        kda_native.kda(case.inputs, case.params, case.view(), [Span(0, 1, 4, 0, NO_PAGES)])
    small = StateView(case.state[:, :1], case.conv)
    with pytest.raises(NativeError, match="the geometry wants"):
        kda_native.kda(case.inputs, case.params, small, [Span(0, 1, 0, 0, NO_PAGES)])


def test_tiles_of_the_state() -> None:
    plain = torch.arange(2 * 64 * 64).view(2, 64, 64)
    tiled = tiled_state(plain)
    assert tiled[1, 1, 5, 3] == plain[1, 5, 35]
    assert torch.equal(plain_state(tiled), plain)
