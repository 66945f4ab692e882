"""The engine over the real runtimes and caches, on small random models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepfuse import Engine, SamplingParams
from stepfuse.core.config import Geometry
from stepfuse.core.errors import MemoryPlanError
from stepfuse.engine.parts import Facts, Parts
from stepfuse.engine.pool import PAGE_TOKENS, CachePlan, Caches, CacheWish, plan_caches
from stepfuse.engine.request import RequestOutput
from stepfuse.engine.team import fused_runtime, start_core
from stepfuse.ops.dispatch import chosen
from stepfuse.runtime.plan import DecodeBackend
from stepfuse.runtime.standard import StandardRuntime
from tests.support.geometries import small_k3, small_linear
from tests.support.near_ties import check_same_or_tied
from tests.support.pack_weights import pack_model
from tests.support.random_weights import random_tensors

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LENGTH = 256


def engine_of(
    geometry: Geometry, plan: CachePlan | None = None, backend: DecodeBackend = "auto"
) -> Engine:
    caches = Caches(plan or plan_caches(geometry, CacheWish("bf16", LENGTH, 4, None)))
    weights = pack_model(geometry, random_tensors(geometry))
    core = start_core(2)
    views = (caches.latent.views(), caches.state.views())
    fused = None if core.team is None else fused_runtime((geometry, weights), views, core, 8)
    return Engine.of(
        Parts(
            geometry=geometry,
            pool=caches,
            standard=StandardRuntime(geometry, weights, *views, core.team),
            fused=fused,
            prepared_rows=0 if fused is None else 8,
            backend=backend,
            max_model_len=LENGTH,
            facts=Facts("small", "bf16", 2, core.level),
            max_num_seqs=4,
            prefill_chunk=32,
        )
    )


def prompts(geometry: Geometry) -> list[list[int]]:
    generator = np.random.default_rng(3)
    lengths = (PAGE_TOKENS - 3, PAGE_TOKENS - 1, PAGE_TOKENS, 1, PAGE_TOKENS + 1, 100)
    return [generator.integers(0, geometry.vocab, n).tolist() for n in lengths]


def agree(engine: Engine, outputs: list[RequestOutput], alone: list[RequestOutput]) -> int:
    """How many outputs equal those of the request alone; the others part at a near tie.

    PyTorch's products depend on the number of rows, the native kernels' do not: with these every
    output must be equal.
    """
    geometry = engine.parts.geometry
    same = 0
    for a, b in zip(alone, outputs, strict=True):
        if a.token_ids == b.token_ids:
            same += 1
            continue
        assert chosen() == "eager"
        logits = engine.score([*a.prompt_token_ids, *a.token_ids])[len(a.prompt_token_ids) - 1 :]
        check_same_or_tied(a.token_ids, b.token_ids, logits, geometry)
    return same


@pytest.mark.parametrize("backend", ["standard", "auto"])
@pytest.mark.parametrize("geometry", [small_k3(), small_linear()], ids=["k3", "linear"])
def test_batched_chunked_and_preempted_equal_alone(
    geometry: Geometry, backend: DecodeBackend
) -> None:
    engine, texts = engine_of(geometry, backend=backend), prompts(geometry)
    alone = [engine.generate(p, GREEDY)[0] for p in texts]
    assert agree(engine, engine.generate(texts, GREEDY), alone) > len(texts) // 2
    full = plan_caches(geometry, CacheWish("bf16", LENGTH, 4, None))
    # Four pages are one request of the longest length: the others must give way again and again.
    few = CachePlan(full.latent, full.state, LENGTH // PAGE_TOKENS, full.slots)
    crowded = engine_of(geometry, few, backend)
    assert agree(engine, crowded.generate(texts, GREEDY), alone) > len(texts) // 2
    assert crowded.stats().preemptions > 0
    pool = crowded.parts.pool
    assert (pool.free_pages, pool.free_slots) == (few.pages, few.slots)


def test_a_reused_slot_inherits_nothing() -> None:
    geometry = small_k3()
    engine = engine_of(geometry)
    first = engine.generate([5, 6, 7], GREEDY)[0].token_ids
    engine.generate(prompts(geometry)[:4], replace(GREEDY, max_tokens=4))
    assert engine.generate([5, 6, 7], GREEDY)[0].token_ids == first


def test_score_agrees_with_generate() -> None:
    engine = engine_of(small_k3())
    (output,) = engine.generate([9, 8, 7], GREEDY)
    text = [*output.prompt_token_ids, *output.token_ids]
    logits = engine.score(text)
    assert logits.dtype == torch.float32
    assert logits.shape == (len(text), engine.parts.vocab)
    best = logits[2:-1].argmax(-1).tolist()
    check_same_or_tied(output.token_ids, best, logits[2:], engine.parts.geometry)


def test_cache_plan_arithmetic() -> None:
    geometry = small_k3()
    full = plan_caches(geometry, CacheWish("bf16", 130, 2, None))
    # 3 MLA layers x 64 tokens x (64 + 16) BF16 numbers; 4 KDA layers x 3 heads x 32 x 32 FP32 and
    # 3 past inputs x 3 x 96 BF16.
    assert full.latent.page_bytes == 3 * 64 * 160
    assert full.state.slot_bytes == 4 * (3 * 32 * 32 * 4 + 3 * 3 * 96 * 2)
    assert (full.pages, full.slots) == (2 * 3, 2)
    assert full.bytes == 6 * full.latent.page_bytes + 2 * full.state.slot_bytes
    exact = plan_caches(geometry, CacheWish("bf16", 130, 2, full.bytes - 1))
    assert exact.pages == 5
    least = 3 * full.latent.page_bytes + 2 * full.state.slot_bytes
    assert plan_caches(geometry, CacheWish("bf16", 130, 2, least)).pages == 3
    with pytest.raises(MemoryPlanError, match=f"give at least {least} bytes"):
        plan_caches(geometry, CacheWish("bf16", 130, 2, least - 1))
    fp8 = plan_caches(geometry, CacheWish("fp8", 130, 2, None))
    assert fp8.latent.page_bytes == 3 * 64 * (80 + 8)
