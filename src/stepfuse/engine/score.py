"""Logits of a given text through the engine's own decode backend."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stepfuse.core.errors import CacheError
from stepfuse.engine.parts import Parts
from stepfuse.engine.scheduler import Scheduler
from stepfuse.engine.statistics import Statistics
from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.plan import plan


@dataclass(frozen=True, slots=True)
class Place:
    """Slot and pages one scored text holds while it runs."""

    slot: int
    pages: NDArray[np.int32]


def score_tokens(
    ids: list[int], parts: Parts, scheduler: Scheduler, statistics: Statistics
) -> torch.Tensor:
    """Logits FP32 [T, vocab]: row t follows ids[0..t].

    Running requests give way (they are recomputed later) where pages or slots do not suffice.
    """
    place = _take_place(len(ids), parts, scheduler)
    try:
        chunk = 1 if parts.prepared_rows and parts.backend != "standard" else parts.prefill_chunk
        logits = torch.empty((len(ids), parts.vocab), dtype=torch.float32)
        for start in range(0, len(ids), chunk):
            tokens = np.array(ids[start : start + chunk], dtype=np.int32)
            rows = SequenceRows(place.slot, len(tokens), start, place.pages, "all")
            step = StepInput(tokens, (rows,))
            logits[start : start + len(tokens)] = _run(step, parts, statistics)
        return logits
    finally:
        parts.pool.give_pages(place.pages)
        parts.pool.give_slot(place.slot)


def _take_place(tokens: int, parts: Parts, scheduler: Scheduler) -> Place:
    pool = parts.pool
    count = -(-tokens // pool.page_tokens)
    while pool.free_pages < count or not pool.free_slots:
        if not scheduler.preempt_youngest():
            raise CacheError(
                f"scoring {tokens} tokens needs {count} pages, {pool.free_pages} are free; raise "
                "cache_bytes"
            )
    pages = pool.take_pages(count)
    try:
        return Place(pool.take_slot(), pages)
    except CacheError:
        pool.give_pages(pages)
        raise


def _run(step: StepInput, parts: Parts, statistics: Statistics) -> torch.Tensor:
    started = time.perf_counter_ns()
    chosen = plan(step, parts.backend, parts.prepared_rows)
    output = parts.runtime(chosen.path).run(step)
    statistics.record(chosen, 1, started, output.native_ns)
    return output.logits
