"""k3-tiny through both backends: the same greedy tokens, whatever threads and batch.

Standard and specialized share their kernels' rounding contract; where tokens still part, the
reference's two logits must lie closer than the roundings can turn around, and such cases are
counted (and shown with `pytest -rP`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepfuse import Engine, SamplingParams
from stepfuse.engine.request import RequestOutput
from stepfuse.runtime.plan import DecodeBackend
from tests.support.k3_tiny import held_out_prompts
from tests.support.near_ties import check_same_or_tied

PROMPTS, TOKENS = 20, 256
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def open_engine(backend: DecodeBackend, threads: int | None = None) -> Engine:
    engine = Engine("k3-tiny", backend, threads=threads, max_model_len=1024)
    assert (engine.parts.prepared_rows > 0) or backend == "standard"
    return engine


def complete(engine: Engine, prompts: list[list[int]]) -> list[RequestOutput]:
    """Outputs of prompts run together; decode steps must have run on the engine's own path."""
    outputs = engine.generate(prompts, GREEDY)
    paths = {path for path, reason in engine.stats().steps if reason == "decode"}
    assert paths <= {"latency_specialized"}
    if engine.parts.backend == "latency_specialized":
        assert paths
    return outputs


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return held_out_prompts(PROMPTS)


@pytest.fixture(scope="module")
def specialized(prompts: list[list[int]]) -> Iterator[list[RequestOutput]]:
    """Eight at a time, with every processor."""
    with open_engine("latency_specialized") as engine:
        yield complete(engine, prompts)


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [o.token_ids for o in outputs]


def test_standard_and_specialized_choose_the_same_tokens(
    prompts: list[list[int]], specialized: list[RequestOutput]
) -> None:
    with open_engine("standard") as engine:
        reference = complete(engine, prompts)
        parted = 0
        for a, b in zip(reference, specialized, strict=True):
            if a.token_ids != b.token_ids:
                logits = engine.score([*a.prompt_token_ids, *a.token_ids])
                rows = logits[len(a.prompt_token_ids) - 1 :]
                check_same_or_tied(a.token_ids, b.token_ids, rows, engine.parts.geometry)
                parted += 1
    print(f"{parted} of {PROMPTS} texts part at a near tie")
    # A tie within the tolerance is rare: most texts must agree to the last token.
    assert parted <= PROMPTS // 4


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_thread_count_changes_nothing(
    threads: int, prompts: list[list[int]], specialized: list[RequestOutput]
) -> None:
    with open_engine("latency_specialized", threads) as engine:
        assert tokens(complete(engine, prompts)) == tokens(specialized)


def test_alone_and_in_a_batch_of_eight(
    prompts: list[list[int]], specialized: list[RequestOutput]
) -> None:
    with open_engine("latency_specialized") as engine:
        together = tokens(complete(engine, prompts[:8]))
        alone = [complete(engine, [prompt])[0].token_ids for prompt in prompts[:8]]
    assert together == alone == tokens(specialized)[:8]
