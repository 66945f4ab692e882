"""The plan, over every combination of what it looks at."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.plan import DecodeBackend, Plan, plan

BACKENDS: tuple[DecodeBackend, ...] = ("auto", "standard", "latency_specialized")
PAGES = np.zeros(1, np.int32)


def step_of(rows: tuple[int, ...], cached: int = 3) -> StepInput:
    sequences = tuple(SequenceRows(i, n, cached, PAGES) for i, n in enumerate(rows))
    return StepInput(np.zeros(sum(rows), np.int32), sequences)


def expected(rows: tuple[int, ...], backend: DecodeBackend, prepared: int) -> Plan:
    width = sum(rows)
    if backend == "standard":
        return Plan("standard", width, "backend_standard")
    if prepared == 0:
        return Plan("standard", width, "unsupported")
    if all(n > 1 for n in rows) and rows:
        return Plan("standard", width, "prefill")
    if any(n > 1 for n in rows):
        return Plan("standard", width, "mixed")
    if width > prepared:
        return Plan("standard", width, "wide")
    return Plan("latency_specialized", width, "decode")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prepared", [0, 1, 2, 8])
def test_every_small_batch(backend: DecodeBackend, prepared: int) -> None:
    for count in range(5):
        for rows in product((1, 2, 7), repeat=count):
            assert plan(step_of(rows), backend, prepared) == expected(rows, backend, prepared)


@pytest.mark.parametrize(("width", "path"), [(8, "latency_specialized"), (9, "standard")])
def test_the_prepared_width_is_included(width: int, path: str) -> None:
    assert plan(step_of((1,) * width), "auto", 8).path == path


def test_a_fresh_sequence_of_one_token_is_a_decode_row() -> None:
    assert plan(step_of((1, 1), cached=0), "auto", 8) == Plan("latency_specialized", 2, "decode")


def test_the_plan_has_no_memory() -> None:
    steps = [step_of((1,)), step_of((5,)), step_of((1, 5)), step_of((1,) * 9)]
    once = [plan(step, "auto", 8) for step in steps]
    assert [plan(step, "auto", 8) for step in reversed(steps)] == once[::-1]
    assert [p.reason for p in once] == ["decode", "prefill", "mixed", "wide"]
