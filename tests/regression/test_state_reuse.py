"""Known ways to be wrong when state is reused, as far as an engine without a prefix cache goes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stepfuse import Engine, SamplingParams
from stepfuse.engine.pool import PAGE_TOKENS
from tests.support.near_ties import check_same_or_tied
from tests.support.tiny import tiny_k3, tiny_kimi_linear

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", params=[tiny_k3, tiny_kimi_linear], ids=["k3", "linear"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = request.param(tmp_path_factory.mktemp("model"))
    with Engine(str(folder), max_model_len=256, max_num_seqs=2, prefill_chunk=48) as opened:
        yield opened


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, length).tolist()


def greedy(engine: Engine, prompt: list[int]) -> tuple[int, ...]:
    return engine.generate(prompt, GREEDY)[0].token_ids


def check_token_by_token(engine: Engine, prompt: list[int]) -> None:
    """Chunked prefill and decode choose what scoring one token per step says."""
    chosen = greedy(engine, prompt)
    logits = engine.score([*prompt, *chosen])[len(prompt) - 1 : -1]
    best = logits.argmax(-1).tolist()
    check_same_or_tied(chosen, best, logits, engine.parts.geometry)


@pytest.mark.parametrize("length", [1, 2, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 130])
def test_a_prompt_at_a_page_boundary_then_one_longer(engine: Engine, length: int) -> None:
    check_token_by_token(engine, text(length))
    check_token_by_token(engine, text(length + 1))


def test_the_same_prompt_twice(engine: Engine) -> None:
    prompt = text(70)
    assert greedy(engine, prompt) == greedy(engine, prompt)


def test_a_prompt_that_shares_only_a_part(engine: Engine) -> None:
    first, second = text(100), [*text(60), *text(40, seed=1)]
    alone = greedy(engine, second)
    greedy(engine, first)
    assert greedy(engine, second) == alone


def test_b_after_a_equals_b_alone(engine: Engine) -> None:
    """The slot and the pages of A are taken again at once."""
    alone = greedy(engine, text(5, seed=2))
    for seed in range(3, 6):
        greedy(engine, text(120, seed=seed))
    assert greedy(engine, text(5, seed=2)) == alone


def test_a_one_token_prompt_starts_from_zero_state(engine: Engine) -> None:
    alone = greedy(engine, [7])
    greedy(engine, text(90))
    assert greedy(engine, [7]) == alone
