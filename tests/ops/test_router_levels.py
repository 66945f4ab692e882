"""Expert choice on every level: ties, signed zeros, infinities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepfuse.ops.router import native as router_native
from stepfuse.ops.router.ref import choose
from tests.support.levels import U32, each_level, on_level


def check(logits: Tensor, bias: Tensor, k: int) -> None:
    """Ids against the scores' own order (scores far apart or equal), weights against FP64."""
    for renormalize, scaling in ((True, 2.446), (False, 1.0)):
        ids, weights = router_native.route(logits, bias, k, scaling, renormalize)
        scores = 1 / (1 + torch.exp(-logits.double()))
        biased = (scores.float() + bias).tolist()
        for r, row in enumerate(biased):
            assert ids[r].tolist() == choose(row, k)
        want = torch.gather(scores, 1, ids.long())
        if renormalize:
            want = want / want.sum(dim=1, keepdim=True)
        assert ((weights - want * scaling).abs() <= (k + 16) * U32 * want * scaling).all()


@each_level
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (4, 4), (7, 3), (61, 8), (896, 16), (896, 896)])
def test_choice(level: str, experts: int, k: int) -> None:
    generator = torch.Generator().manual_seed(experts)
    # Distinct multiples of 2^-6 leave FP32 scores further apart than their errors.
    order = torch.stack([torch.randperm(experts, generator=generator) for _ in range(9)])
    logits = (order - experts / 2) / max(experts / 8, 1)
    bias = torch.randint(-3, 3, (experts,), generator=generator) * 4.0
    with on_level(level):
        check(logits.float(), bias, k)


@each_level
def test_ties_go_to_the_lower_index(level: str) -> None:
    with on_level(level):
        check(torch.zeros(2, 37), torch.zeros(37), 5)
        bias = torch.zeros(37)
        bias[[3, 20, 21, 36]] = 1.0
        check(torch.zeros(2, 37), bias, 3)
        check(torch.zeros(2, 37), bias, 6)


@each_level
def test_signed_zeros_are_equal(level: str) -> None:
    # A sigmoid of 0 plus a bias of -0 is +0 or -0 by the order of its zeros.
    logits = torch.full((1, 20), -1000.0)
    bias = torch.zeros(20)
    bias[::2] = -0.0
    with on_level(level):
        ids, _ = router_native.route(logits, bias, 4, 1.0, True)
    assert ids.tolist() == [[0, 1, 2, 3]]


@each_level
@pytest.mark.parametrize("value", [-1e30, -torch.inf, torch.inf])
def test_a_bias_far_away_still_gives_distinct_experts(level: str, value: float) -> None:
    with on_level(level):
        ids, weights = router_native.route(
            torch.zeros(1, 21), torch.full((21,), value), 8, 1.0, True
        )
    assert ids.tolist() == [list(range(8))]
    assert torch.allclose(weights, torch.full((1, 8), 0.125))


@each_level
def test_logits_of_minus_infinity(level: str) -> None:
    with on_level(level):
        logits = torch.full((1, 21), -torch.inf)
        ids, weights = router_native.route(logits, torch.zeros(21), 8, 1.0, True)
    assert ids.tolist() == [list(range(8))]
    assert torch.equal(weights, torch.zeros(1, 8))


@each_level
def test_nan_logits_rank_last_and_show(level: str) -> None:
    logits = torch.zeros(1, 21)
    logits[0, :20] = torch.nan
    with on_level(level):
        ids, weights = router_native.route(logits, torch.zeros(21), 2, 1.0, True)
    assert ids.tolist() == [[0, 20]]
    assert weights.isnan().all()
