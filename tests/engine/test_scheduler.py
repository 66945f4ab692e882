"""Any mix of requests through any small pool: each comes out as if alone, and nothing is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfuse import Engine, SamplingParams
from tests.support.fake_runtime import VOCAB, FakePool, FakeRuntime, expected_greedy, fake_parts

requests = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=7
)  # prompt and output lengths


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@settings(max_examples=40, deadline=None)
@given(
    wanted=requests,
    pages=st.integers(7, 20),
    slots=st.integers(1, 4),
    chunk=st.integers(1, 9),
)
def test_any_mix_equals_each_alone(
    wanted: list[tuple[int, int]], pages: int, slots: int, chunk: int
) -> None:
    pool = FakePool(pages, slots)
    engine = Engine.of(fake_parts(pool, prefill_chunk=chunk))
    prompts = [prompt(length, seed) for seed, (length, _) in enumerate(wanted)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in wanted]
    outputs = engine.generate(prompts, params)
    for text, (_, count), output in zip(prompts, wanted, outputs, strict=True):
        assert list(output.token_ids) == expected_greedy(text, count)
    assert pool.idle
    standard, fused = engine.parts.standard, engine.parts.fused
    assert isinstance(standard, FakeRuntime)
    assert isinstance(fused, FakeRuntime)
    assert all(step.width <= max(chunk, slots) for step in standard.steps)
    assert all(s.rows == 1 for step in fused.steps for s in step.sequences)


def test_decoding_requests_give_way_to_an_older_one_that_still_prefills() -> None:
    """The younger decodes between chunks of the older, and is the one to go when pages run out."""
    pool = FakePool(pages=6, slots=2)
    engine = Engine.of(fake_parts(pool, prefill_chunk=2, max_model_len=24))
    long, short = prompt(19, 1), prompt(3, 2)
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    outputs = engine.generate([long, short], greedy)
    assert [list(o.token_ids) for o in outputs] == [
        expected_greedy(long, 5),
        expected_greedy(short, 5),
    ]
    assert engine.stats().preemptions > 0
    assert pool.idle
