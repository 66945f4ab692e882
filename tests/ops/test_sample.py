"""Sampling: filters against a plain reference, draws by seed and position alone, failed rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfuse.ops.sample import SampleParams, sample, top_logprobs
from stepfuse.ops.sample.eager import filtered, uniform
from stepfuse.ops.sample.ref import distribution

STORED = [0.011546754286331562, 0.8107662191464656]


def _params(rows: int, **changed: float) -> SampleParams:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": 0}
    values |= changed
    return SampleParams(
        temperature=np.full(rows, values["temperature"]),
        top_k=np.full(rows, values["top_k"], dtype=np.int64),
        top_p=np.full(rows, values["top_p"]),
        min_p=np.full(rows, values["min_p"]),
        seed=np.full(rows, values["seed"], dtype=np.uint64),
        position=np.full(rows, values["position"], dtype=np.int64),
    )


def test_greedy_takes_the_lower_index_on_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert sample(logits, SampleParams.greedy(2)).ids.tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_failed_row_is_reported_and_the_others_live(temperature: float, bad: float) -> None:
    logits = torch.zeros(3, 8)
    logits[:, 5] = 50.0
    logits[1, 7] = bad
    out = sample(logits, _params(3, temperature=temperature), want_logprobs=True)
    assert out.ids.tolist() == [5, -1, 5]
    assert out.failed.tolist() == [False, True, False]
    assert np.isnan(out.logprobs).tolist() == [False, True, False]


def test_all_minus_infinity_fails() -> None:
    assert sample(torch.full((1, 4), -torch.inf), _params(1)).ids.tolist() == [-1]


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 6), -torch.inf)
    logits[0, [1, 4]] = 0.0
    drawn = {int(sample(logits, _params(1, seed=s)).ids[0]) for s in range(200)}
    assert drawn == {1, 4}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12),
    st.floats(0.2, 3.0),
    st.integers(0, 13),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_filters_equal_the_reference(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = np.array(logits, dtype=np.float32)
    params = _params(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    weights = filtered(row, params, 0)
    want = distribution(row.astype(np.float64).tolist(), temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(weights / weights.sum(), want, rtol=1e-12, atol=1e-15)


def test_draws_follow_the_distribution() -> None:
    """5,000 draws at different positions: each frequency within 5 standard deviations."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]])
    count = 5_000
    rows = logits.expand(count, -1)
    params = _params(count, temperature=1.3)
    params.position[:] = np.arange(count)
    ids = sample(rows, params).ids
    want = np.array(distribution(logits[0].tolist(), 1.3, 0, 1.0, 0.0))
    seen = np.bincount(ids, minlength=5) / count
    assert (np.abs(seen - want) <= 5 * np.sqrt(want * (1 - want) / count)).all()


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    make = torch.Generator().manual_seed(1)
    logits = torch.randn(16, 64, generator=make)
    params = _params(16)
    params.seed[:] = np.arange(16) * 7
    params.position[:] = np.arange(16)[::-1]
    together = sample(logits, params).ids
    for i in range(16):
        own = _params(1, seed=i * 7, position=15 - i)
        assert sample(logits[i : i + 1], own).ids[0] == together[i]
    numbers = {uniform(s, p) for s in range(20) for p in range(20)}
    assert len(numbers) == 400


def test_large_seeds_and_stored_numbers() -> None:
    """The stream is part of the product: the same seed gives the same text tomorrow."""
    assert uniform(2**64 - 1, 2**40) == uniform(2**64 - 1, 2**40)
    assert [uniform(0, 0), uniform(3, 5)] == STORED


def test_top_logprobs() -> None:
    row = torch.tensor([1.0, 3.0, 3.0, 0.0])
    ids, values = top_logprobs(row, 3)
    assert ids.tolist() == [1, 2, 0]
    want = torch.log_softmax(row.double(), 0)[[1, 2, 0]]
    np.testing.assert_allclose(values, want.numpy(), rtol=1e-12)
