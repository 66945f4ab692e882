"""Routing against its reference on random logits of every width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.router import route
from stepfuse.ops.router.eager import route as eager_route
from stepfuse.ops.router.ref import choose
from stepfuse.ops.router.ref import route as route_ref
from tests.support.implementations import each_implementation, running
from tests.support.tolerance import U_FP32, U_GATE, assert_within


@each_implementation
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (8, 8), (16, 3), (256, 8), (896, 16)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_random(which: Implementation, experts: int, k: int, renormalize: bool) -> None:
    make = torch.Generator().manual_seed(experts)
    logits = torch.randn(7, experts, generator=make)
    bias = 0.1 * torch.randn(experts, generator=make)
    with running(which):
        ids, weights = route(logits, bias, k, 2.446, renormalize)
    want = route_ref(logits.double(), bias, k, 2.446, renormalize)
    assert ids.dtype == torch.int32
    assert torch.equal(ids.long(), want.ids)
    assert_within(weights, want.weights, (k + 4) * 3 * (U_FP32 + U_GATE))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([-2.0, -0.5, 0.0, -0.0, 0.5, 2.0]), min_size=1, max_size=24),
    st.integers(1, 24),
)
def test_ties_of_every_shape(values: list[float], k: int) -> None:
    k = min(k, len(values))
    ids, _ = eager_route(torch.zeros(1, len(values)), torch.tensor(values), k, 1.0, False)
    biased = (0.5 + torch.tensor(values)).tolist()
    assert ids[0].tolist() == choose(biased, k)
    best = sorted(range(len(values)), key=lambda i: (-biased[i], i))[:k]
    assert ids[0].tolist() == sorted(best)
