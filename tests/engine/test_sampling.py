"""Sampled text: reproducible by seed, whatever else is in the batch, and across preemptions."""

from __future__ import annotations

from dataclasses import replace

from stepfuse import Engine, SamplingParams
from tests.support.fake_runtime import FakePool, fake_parts

WARM = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=12, ignore_eos=True)


def tokens(
    engine: Engine, prompts: list[list[int]], params: SamplingParams
) -> list[tuple[int, ...]]:
    return [o.token_ids for o in engine.generate(prompts, params)]


def test_a_seed_repeats_whatever_else_runs() -> None:
    pool = FakePool()
    engine = Engine.of(fake_parts(pool))
    (alone,) = tokens(engine, [[1, 2, 3]], WARM)
    others = [[n, n + 1] for n in range(10)]
    batch = engine.generate(
        [*others, [1, 2, 3]],
        [replace(WARM, temperature=0.1 * n, seed=n) for n in range(10)] + [WARM],
    )
    assert batch[-1].token_ids == alone
    few = FakePool(pages=10, slots=8)
    small = Engine.of(fake_parts(few))
    crowded = tokens(small, [[1, 2, 3]] * 5, WARM)
    assert crowded == [alone] * 5
    assert small.stats().preemptions > 0
    assert few.idle


def test_seeds_differ_and_no_seed_is_fresh() -> None:
    engine = Engine.of(fake_parts())
    drawn = {tokens(engine, [[1]], replace(WARM, seed=s))[0] for s in range(5)}
    assert len(drawn) == 5
    free = tokens(engine, [[1]] * 4, replace(WARM, seed=None))
    assert len(set(free)) == 4


def test_filters_narrow_to_greedy() -> None:
    engine = Engine.of(fake_parts())
    greedy = tokens(engine, [[5]], replace(WARM, temperature=0.0))
    for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert tokens(engine, [[5]], replace(WARM, **narrow)) == greedy  # type: ignore[arg-type]
