"""Held-out perplexity and task accuracy of k3-tiny: the same within 0.5 % on every path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from stepfuse import Engine
from stepfuse.evals.heldout import Task
from stepfuse.evals.perplexity import perplexity
from stepfuse.evals.tasks import task_accuracy
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.plan import DecodeBackend
from tests.support.k3_tiny import held_out

PATHS: list[tuple[DecodeBackend, KvDtype]] = [
    ("standard", "bf16"),
    ("standard", "fp8"),
    ("latency_specialized", "bf16"),
    ("latency_specialized", "fp8"),
]
# Enough tokens that their mean loss is stable, few enough for one token per step.
TEXTS, CHARACTERS = 4, 2500
# Recalls are nearly all prefill, which both backends share: few of them, fewer of the long ones.
LONG_CHARACTERS, SHORT_ONE_IN, LONG_ONE_IN = 800, 4, 24
WITHIN = 0.005


@dataclass(frozen=True)
class Quality:
    perplexity: float
    accuracy: float
    recall: float


def chosen_tasks(tasks: Sequence[Task]) -> list[Task]:
    recalls = [task for task in tasks if task.kind == "recall"]
    short = [task for task in recalls if len(task.prompt) <= LONG_CHARACTERS]
    long = [task for task in recalls if len(task.prompt) > LONG_CHARACTERS]
    others = [task for task in tasks if task.kind != "recall"]
    return others + short[::SHORT_ONE_IN] + long[::LONG_ONE_IN]


@pytest.fixture(scope="module")
def measured() -> dict[tuple[DecodeBackend, KvDtype], Quality]:
    data = held_out()
    texts = [text[:CHARACTERS] for text in data.texts[:TEXTS]]
    tasks = chosen_tasks(data.tasks)
    # One task more or less must stay within the bound, else it would demand identity.
    assert len(tasks) > 2 / WITHIN
    found = {}
    for backend, dtype in PATHS:
        with Engine("k3-tiny", backend, kv_cache_dtype=dtype, max_model_len=2048) as engine:
            accuracy = task_accuracy(engine, tasks)
            value = perplexity(engine, texts).perplexity
            found[backend, dtype] = Quality(value, accuracy.share(), accuracy.share("recall"))
            paths = {path for path, _ in engine.stats().steps}
            assert backend in paths
    return found


@pytest.mark.parametrize("path", PATHS[1:], ids=lambda p: "-".join(p))
def test_quality_is_the_same_on_every_path(
    measured: dict[tuple[DecodeBackend, KvDtype], Quality], path: tuple[DecodeBackend, KvDtype]
) -> None:
    reference, got = measured[PATHS[0]], measured[path]
    assert got.perplexity == pytest.approx(reference.perplexity, rel=WITHIN)
    assert got.accuracy == pytest.approx(reference.accuracy, abs=WITHIN)


def test_the_model_learned(measured: dict[tuple[DecodeBackend, KvDtype], Quality]) -> None:
    """Far from chance, so that agreement between paths means something."""
    reference = measured[PATHS[0]]
    assert reference.perplexity < 60
    assert reference.recall > 0.8
