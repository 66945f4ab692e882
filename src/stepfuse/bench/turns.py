"""Our side of the bench beside peers: one turn of decode, verify or prefill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepfuse.bench.step import decode_wave
from stepfuse.core.errors import NativeError, RequestError, UnsupportedError
from stepfuse.engine.engine import Engine
from stepfuse.engine.request import SamplingParams
from stepfuse.runtime.batch import SequenceRows, StepInput

SPECIALIZED: Final = "latency_specialized"


@dataclass(frozen=True, slots=True)
class Turn:
    """Times of one turn, ms per step, and the path every one of its steps took."""

    ms: tuple[float, ...]
    path: str


def decode_turn(engine: Engine, rows: int, steps: int, generator: np.random.Generator) -> Turn:
    """Time between steps of `rows` requests, as a user meets it."""
    began = perf_counter_ns()
    times = tuple(ns / 1e6 for ns, _ in decode_wave(engine, rows, steps, generator))
    records = [r for r in engine.statistics.records if r.end_ns > began]
    return Turn(times, _path({r.path for r in records if r.active == rows and not r.prefill}))


def _path(found: set[str]) -> str:
    return found.pop() if len(found) == 1 else "mixed"


def verify_turn(engine: Engine, rows: int, steps: int, generator: np.random.Generator) -> Turn:
    """Steps of one sequence and `rows` rows with logits for each row, on the specialized runtime.

    Raises UnsupportedError where it cannot serve, NativeError where it did not run the step.
    """
    parts = engine.parts
    if parts.fused is None:
        raise UnsupportedError("verify runs on the specialized path only", list(parts.unsupported))
    tokens = generator.integers(0, parts.vocab, 1 + steps * rows).astype(np.int32)
    times = []
    with _place(engine, len(tokens)) as (slot, pages):
        _verify(engine, tokens[:1], SequenceRows(slot, 1, 0, pages, "all"))
        for first in range(1, len(tokens), rows):
            part = tokens[first : first + rows]
            times.append(_verify(engine, part, SequenceRows(slot, rows, first, pages, "all")))
    return Turn(tuple(times), SPECIALIZED)


def _verify(engine: Engine, tokens: NDArray[np.int32], sequence: SequenceRows) -> float:
    """Milliseconds of one step."""
    runtime = engine.parts.runtime(SPECIALIZED)
    step = StepInput(tokens, (sequence,))
    began = perf_counter_ns()
    output = runtime.run(step)
    spent = perf_counter_ns() - began
    if not 0 < output.native_ns <= spent or len(output.logits) != sequence.rows:
        raise NativeError(
            f"a verify step of {sequence.rows} rows gave {len(output.logits)} rows of logits in "
            f"{output.native_ns} ns of native time: it did not run on the specialized path"
        )
    return spent / 1e6


@contextmanager
def _place(engine: Engine, tokens: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Slot and pages of a text that belongs to no request. The engine must be idle."""
    pool = engine.parts.pool
    if tokens > engine.parts.max_model_len:
        raise RequestError(f"{tokens} tokens exceed max_model_len={engine.parts.max_model_len}")
    pages = pool.take_pages(-(-tokens // pool.page_tokens))
    slot = pool.take_slot()
    try:
        yield slot, pages
    finally:
        pool.give_slot(slot)
        pool.give_pages(pages)


def prefill_turn(engine: Engine, tokens: int, steps: int, generator: np.random.Generator) -> Turn:
    """Time to first token of prompts of `tokens` tokens, from submission on."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    times = []
    began = perf_counter_ns()
    for _ in range(steps):
        prompt = generator.integers(0, engine.parts.vocab, tokens).tolist()
        (output,) = engine.generate([prompt], params)
        assert output.ttft_s is not None, "a request of one token has a first token"
        times.append(output.ttft_s * 1e3)
    paths = {r.path for r in engine.statistics.records if r.end_ns > began}
    return Turn(tuple(times), _path(paths))


TURNS = {"decode": decode_turn, "verify": verify_turn, "prefill": prefill_turn}
