"""The engine over a fake runtime: who runs when, what comes out, and that everything is freed.

Longer than the house's size: short tests that share one fake runtime.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stepfuse import Engine, SamplingParams
from stepfuse.core.errors import RequestError
from tests.support.fake_runtime import (
    VOCAB,
    FakePool,
    FakeRuntime,
    expected_greedy,
    expected_logits,
    fake_parts,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def engine_of(pool: FakePool | None = None, **changes: object) -> tuple[Engine, FakePool]:
    pool = FakePool() if pool is None else pool
    return Engine.of(fake_parts(pool, **changes)), pool  # type: ignore[arg-type]


def steps(engine: Engine) -> list[FakeRuntime]:
    return [engine.parts.standard, engine.parts.fused]  # type: ignore[list-item]


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 12, 13, 31])
def test_greedy_text_is_the_models_own(length: int) -> None:
    engine, pool = engine_of()
    (output,) = engine.generate(prompt(length), GREEDY)
    assert list(output.token_ids) == expected_greedy(prompt(length), 12)
    assert list(output.prompt_token_ids) == prompt(length)
    assert (output.finish_reason, output.text) == ("length", None)
    assert pool.idle


@pytest.mark.parametrize(("pages", "slots"), [(64, 8), (64, 2), (12, 8), (9, 3)])
def test_many_prompts_at_once_equal_each_alone(pages: int, slots: int) -> None:
    """Few pages force preemption; every request must come out as if it had run alone."""
    engine, pool = engine_of(FakePool(pages, slots))
    prompts = [prompt(n, n) for n in (1, 9, 3, 1, 17, 6, 2, 20, 1, 4)]
    outputs = engine.generate(prompts, GREEDY)
    assert [list(o.token_ids) for o in outputs] == [expected_greedy(p, 12) for p in prompts]
    assert pool.idle
    if pages < 16:
        assert engine.stats().preemptions > 0


def test_decode_stays_specialized_beside_prefill() -> None:
    """Prefill-only and pure decode steps alternate: never one step with both."""
    engine, _ = engine_of()
    engine.generate([prompt(1), prompt(40, 1), prompt(2, 2), prompt(30, 3)], GREEDY)
    standard, fused = steps(engine)
    assert all(s.rows == 1 for step in fused.steps for s in step.sequences)
    assert all(step.width <= 6 for step in standard.steps)
    for step in standard.steps:
        ends = {s.slot for s in step.sequences if s.rows == 1}
        assert len(ends) <= 1, "only the tail of a chunk may be a single row"
    counts = engine.stats().steps
    assert set(counts) <= {
        ("latency_specialized", "decode"),
        ("standard", "prefill"),
        ("standard", "mixed"),
    }
    assert counts["latency_specialized", "decode"] == len(fused.steps)


def test_prefill_alternates_with_decode() -> None:
    engine, _ = engine_of()
    short = engine.submit(prompt(1), SamplingParams(temperature=0, max_tokens=30))
    engine.step()
    long = engine.submit(prompt(60, 1), GREEDY)
    for _ in range(8):
        engine.step()
    kinds = [r.prefill for r in list(engine.statistics.records)[1:]]
    assert kinds == [True, False] * 4
    engine.cancel([short, long])


def test_fifo_admission() -> None:
    engine, _ = engine_of(FakePool(64, 1))
    requests = [engine.submit(prompt(3, i), GREEDY) for i in range(3)]
    order = []
    while engine.step():
        order += [r for r in requests if r.finish_reason and r not in order]
    assert order == requests


def test_one_token_prompts_never_touch_the_standard_path() -> None:
    engine, _ = engine_of()
    engine.generate([prompt(1, i) for i in range(4)], GREEDY)
    assert engine.stats().steps == {("latency_specialized", "decode"): 12}


def test_wide_and_unsupported_steps_say_why() -> None:
    engine, _ = engine_of(FakePool(64, 12))
    engine.generate([prompt(1, i) for i in range(12)], GREEDY)
    assert engine.stats().steps == {("standard", "wide"): 12}
    engine, _ = engine_of(fused=None, prepared_rows=0, unsupported=("no native core",))
    engine.generate(prompt(1), GREEDY)
    assert engine.stats().steps == {("standard", "unsupported"): 12}
    assert engine.stats().unsupported == ("no native core",)


def test_stream_gives_every_token_once() -> None:
    engine, pool = engine_of()
    prompts = [prompt(3, 1), prompt(8, 2)]
    got: dict[int, list[int]] = {0: [], 1: []}
    ends = {}
    for delta in engine.stream(prompts, GREEDY):
        got[delta.index] += delta.token_ids
        if delta.finish_reason:
            ends[delta.index] = delta.finish_reason
    assert [got[i] for i in (0, 1)] == [expected_greedy(p, 12) for p in prompts]
    assert ends == {0: "length", 1: "length"}
    assert pool.idle


def test_closing_a_stream_frees_everything() -> None:
    engine, pool = engine_of()
    stream = engine.stream([prompt(9, 1), prompt(2, 2)], GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert pool.idle
    assert engine.stats().finished == {"abort": 2}
    assert list(engine.generate(prompt(2), GREEDY)[0].token_ids) == expected_greedy(prompt(2), 12)


def test_a_stream_never_started_leaves_nothing() -> None:
    engine, pool = engine_of()
    engine.stream(prompt(4), GREEDY)
    assert engine.step() is False
    assert pool.idle


def test_a_failing_step_frees_everything_and_reaches_the_caller() -> None:
    engine, pool = engine_of()
    runtime = engine.parts.fused
    assert isinstance(runtime, FakeRuntime)
    runtime.fail_at = 3
    with pytest.raises(RuntimeError, match="the fake runtime fails"):
        engine.generate([prompt(5), prompt(1)], GREEDY)
    assert pool.idle
    runtime.fail_at = None
    assert list(engine.generate(prompt(2), GREEDY)[0].token_ids) == expected_greedy(prompt(2), 12)


def test_a_nan_fails_that_request_only() -> None:
    engine, pool = engine_of()
    bad, good = [7, 8, 9], [1, 2, 3]
    for runtime in steps(engine):
        runtime.nan_token = 9
    outputs = engine.generate([bad, good], GREEDY)
    assert (outputs[0].finish_reason, outputs[0].token_ids) == ("error", ())
    assert "not finite" in str(outputs[0].error)
    assert list(outputs[1].token_ids) == expected_greedy(good, 12)
    assert pool.idle


def test_concurrent_callers_get_their_own_outputs() -> None:
    engine, pool = engine_of(FakePool(40, 4))
    prompts = [[prompt(1 + (5 * i + j) % 11, 10 * i + j) for j in range(5)] for i in range(4)]
    results: dict[int, list[list[int]]] = {}

    def call(i: int) -> None:
        results[i] = [list(o.token_ids) for o in engine.generate(prompts[i], GREEDY)]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {i: [expected_greedy(p, 12) for p in prompts[i]] for i in range(4)}
    assert pool.idle


def test_the_end_ids() -> None:
    text = expected_greedy(prompt(3), 12)
    engine, _ = engine_of(eos_ids=frozenset([text[5]]))
    first = text.index(text[5]) + 1
    (output,) = engine.generate(prompt(3), SamplingParams(temperature=0, max_tokens=12))
    assert (list(output.token_ids), output.finish_reason) == (text[:first], "stop")
    (output,) = engine.generate(prompt(3), GREEDY)
    assert (list(output.token_ids), output.finish_reason) == (text, "length")
    stop = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[text[2]])
    (output,) = engine.generate(prompt(3), stop)
    assert list(output.token_ids) == text[: text.index(text[2]) + 1]


def test_the_longest_sequence_ends_with_length() -> None:
    engine, pool = engine_of(FakePool(8, 2))
    (output,) = engine.generate(prompt(20), SamplingParams(temperature=0, max_tokens=None))
    assert (len(output.token_ids), output.finish_reason) == (12, "length")
    (output,) = engine.generate(prompt(31), SamplingParams(temperature=0, max_tokens=500))
    assert len(output.token_ids) == 1
    assert pool.idle


def test_logprobs_are_of_the_raw_logits() -> None:
    engine, _ = engine_of()
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    (output,) = engine.generate(prompt(2), params)
    assert output.logprobs is not None
    text = prompt(2)
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        reference = expected_logits(text).double().log_softmax(-1)
        # One FP64 rounding each way; the fake logits are exact FP32 numbers.
        assert entry.logprob == pytest.approx(reference[token].item(), abs=1e-12)
        assert entry.top[0] == (token, entry.logprob)
        assert len(entry.top) == 2
        text.append(token)
    assert engine.generate(prompt(2), GREEDY)[0].logprobs is None


@pytest.mark.parametrize("backend", ["standard", "auto", "latency_specialized"])
def test_score_runs_through_the_decode_backend(backend: str) -> None:
    engine, pool = engine_of(backend=backend)
    ids = prompt(15)
    logits = engine.score(ids)
    for t in range(15):
        assert logits[t].equal(expected_logits(ids[: t + 1]))
    standard, fused = steps(engine)
    if backend == "standard":
        assert [s.width for s in standard.steps] == [6, 6, 3]
    else:
        assert [s.width for s in fused.steps] == [1] * 15
        assert not standard.steps
    assert pool.idle


def test_score_makes_running_requests_wait() -> None:
    engine, pool = engine_of(FakePool(8, 2))
    request = engine.submit(prompt(10), GREEDY)
    for _ in range(5):
        engine.step()
    assert engine.score(prompt(32, 1)).shape == (32, VOCAB)
    while engine.step():
        pass
    assert list(request.output().token_ids) == expected_greedy(prompt(10), 12)
    assert pool.idle


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompt"),
        ([[]], "the prompt is empty"),
        ([[1], []], "the prompt is empty"),
        ([1, VOCAB], f"token id {VOCAB} is outside"),
        ([-1], "token id -1 is outside"),
        ([[1, "x"]], "token ids must be integers"),
        ([[1.5]], "token ids must be integers"),
        ([True, False], "it must be text or a list"),
        ("text", "takes token ids only"),
        ([[1] * 256], "has 256 tokens, but at most 255 fit max_model_len=256"),
        ([[1] * 2560], "has 2560 tokens"),
        (7, "give text, token ids or a list"),
        ([b"ab"], "it must be text or a list"),
    ],
)
def test_bad_prompts_are_refused_and_the_engine_lives(prompts: object, message: str) -> None:
    engine, pool = engine_of()
    with pytest.raises(RequestError, match=message):
        engine.generate(prompts, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=message):
        engine.stream(prompts, GREEDY)  # type: ignore[arg-type]
    assert pool.idle
    assert len(engine.generate([[1]], GREEDY)) == 1


def test_params_per_prompt() -> None:
    engine, _ = engine_of()
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 4)]
    outputs = engine.generate([[1], [2]], params)
    assert [len(o.token_ids) for o in outputs] == [1, 4]
    with pytest.raises(RequestError, match="2 sampling_params for 1 prompts"):
        engine.generate([[1]], params)
    with pytest.raises(RequestError, match="must be one SamplingParams"):
        engine.generate([[1]], {"temperature": 0})  # type: ignore[arg-type]


def test_numpy_and_mixed_prompts() -> None:
    engine, _ = engine_of()
    one, many = np.array([1, 2, 3]), [np.array([1, 2, 3]), [1, 2, 3]]
    expected = expected_greedy([1, 2, 3], 12)
    assert list(engine.generate(one, GREEDY)[0].token_ids) == expected  # type: ignore[arg-type]
    assert [list(o.token_ids) for o in engine.generate(many, GREEDY)] == [expected] * 2  # type: ignore[arg-type]


def test_a_closed_engine_refuses_and_ends_what_ran() -> None:
    engine, pool = engine_of()
    with engine:
        request = engine.submit(prompt(4), GREEDY)
        engine.step()
    assert request.finish_reason == "abort"
    assert pool.idle
    with pytest.raises(RequestError, match="closed"):
        engine.generate(prompt(4), GREEDY)
    with pytest.raises(RequestError, match="closed"):
        engine.score(prompt(4))
    engine.close()
