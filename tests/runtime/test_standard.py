"""The standard runtime: any mix of rows, both members, against the FP64 reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.cache.kda_state import StateCache, StateLayout
from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError, RequestError
from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.standard import StandardRuntime, spans_of, wanted_rows
from tests.support.geometries import flat, small_k3, small_linear
from tests.support.implementations import each_implementation, running
from tests.support.pack_weights import pack_model
from tests.support.random_weights import random_tensors
from tests.support.reference_model import ReferenceModel
from tests.support.tolerance import relative_error

MODELS = {"k3": flat(small_k3()), "linear": flat(small_linear()), "bf16": flat(small_k3("bf16"))}
each_model = pytest.mark.parametrize("name", list(MODELS))
NO_PAGES = np.zeros(0, dtype=np.int32)


@cache
def _weights(name: str):
    return pack_model(MODELS[name], random_tensors(MODELS[name]))


@cache
def _reference(name: str, tokens: tuple[int, ...], rounded: bool, kv: str) -> Tensor:
    model = ReferenceModel(MODELS[name], random_tensors(MODELS[name]), rounded, kv)  # type: ignore[arg-type]
    return model.logits(list(tokens))


def _tokens(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.RandomState(seed).randint(0, 200, count).tolist())


def _runtime(
    g: Geometry, kv: KvDtype, name: str
) -> tuple[StandardRuntime, LatentCache, StateCache]:
    latent = LatentCache(LatentLayout.of(g, kv, 8), 16)
    state = StateCache(StateLayout.of(g), 4)
    latent.data.fill_(0xFF)
    state.state.fill_(torch.nan)
    runtime = StandardRuntime(g, _weights(name), latent.views(), state.views())
    return runtime, latent, state


@each_implementation
@pytest.mark.parametrize(("name", "kv"), [("k3", "bf16"), ("k3", "fp8"), ("linear", "fp8")])
def test_mixed_steps_follow_the_reference(which: Implementation, name: str, kv: KvDtype) -> None:
    """Three sequences: a long prompt in chunks, a decode, a fresh prompt that joins later. Each
    token's logits are as near the exact ones as the rounding contract allows.
    """
    runtime, _, _ = _runtime(MODELS[name], kv, name)
    texts = {0: _tokens(1, 20), 2: _tokens(2, 9), 3: _tokens(3, 9)}
    pages = {0: [9, 1, 4], 2: [0, 15], 3: [7, 8]}
    steps = [{0: 7, 2: 5}, {2: 1, 0: 9}, {3: 8, 2: 1, 0: 1}, {0: 3, 2: 2, 3: 1}]
    done = dict.fromkeys(texts, 0)
    got: dict[int, list[Tensor]] = {slot: [] for slot in texts}
    with running(which):
        for step in steps:
            rows = tuple(
                SequenceRows(s, n, done[s], np.array(pages[s], np.int32), "all")
                for s, n in step.items()
            )
            ids = [t for s, n in step.items() for t in texts[s][done[s] : done[s] + n]]
            logits = runtime.run(StepInput(np.array(ids, np.int32), rows)).logits
            for s, part in zip(step, logits.split(list(step.values())), strict=True):
                got[s].append(part.clone())
                done[s] += len(part)
    for slot, text in texts.items():
        exact = _reference(name, text, False, "none")
        cost = relative_error(_reference(name, text, True, kv), exact)
        error = relative_error(torch.cat(got[slot]), exact)
        assert float(error.median()) <= 1.25 * float(cost.median())
        assert float(error.max()) <= 1.5 * float(cost.max())


@each_implementation
@each_model
def test_against_the_rounded_reference(which: Implementation, name: str) -> None:
    """What is left between two results that round alike: sums on either side of a BF16 edge."""
    runtime, _, _ = _runtime(MODELS[name], "bf16", name)
    tokens = _tokens(4, 20)
    row = SequenceRows(1, 20, 0, np.array([3, 2, 1], np.int32), "all")
    with running(which):
        got = runtime.run(StepInput(np.array(tokens, np.int32), (row,))).logits
    want = _reference(name, tokens, True, "bf16")
    cost = relative_error(want, _reference(name, tokens, False, "none"))
    error = relative_error(got, want)
    assert float(error.median()) <= 0.75 * float(cost.median())
    assert float(error.max()) <= float(cost.max())


@each_model
def test_only_own_slots_and_pages_are_touched(name: str) -> None:
    runtime, latent, state = _runtime(MODELS[name], "fp8", name)
    row = SequenceRows(2, 9, 0, np.array([5, 11], np.int32), "none")
    out = runtime.run(StepInput(np.array(_tokens(5, 9), np.int32), (row,)))
    assert out.logits.shape == (0, 200)
    others = [p for p in range(16) if p not in (5, 11)]
    assert (latent.data[:, others] == 0xFF).all()
    assert (latent.data[:, 11, 1:] == 0xFF).all()
    assert torch.isnan(state.state[:, [0, 1, 3]]).all()
    assert torch.isfinite(state.state[:, 2]).all()


def test_wanted_rows() -> None:
    sequences = [
        SequenceRows(0, 3, 0, NO_PAGES, "last"),
        SequenceRows(1, 2, 0, NO_PAGES, "none"),
        SequenceRows(2, 0, 4, NO_PAGES, "last"),
        SequenceRows(3, 2, 0, NO_PAGES, "all"),
    ]
    assert wanted_rows(sequences).tolist() == [2, 5, 6]
    assert [s.start for s in spans_of(sequences)] == [0, 3, 5, 5]


def test_an_empty_step() -> None:
    runtime, _, _ = _runtime(MODELS["k3"], "bf16", "k3")
    assert runtime.run(StepInput(np.zeros(0, np.int32), ())).logits.shape == (0, 200)


@pytest.mark.parametrize(
    ("tokens", "row", "error"),
    [
        ([200], (0, 1, 0, [0]), RequestError),
        ([-1], (0, 1, 0, [0]), RequestError),
        ([1, 2], (0, 1, 0, [0]), RequestError),
        ([1], (4, 1, 0, [0]), CacheError),
        ([1], (-1, 1, 0, [0]), CacheError),
        ([1], (0, 1, 8, [0]), CacheError),
        ([1], (0, 1, 0, [16]), CacheError),
        ([1], (0, 1, 0, [-1]), CacheError),
    ],
)
def test_refusals_leave_the_caches_untouched(
    tokens: list[int], row: tuple[int, int, int, list[int]], error: type[Exception]
) -> None:
    runtime, latent, state = _runtime(MODELS["k3"], "bf16", "k3")
    slot, rows, cached, pages = row
    sequence = SequenceRows(slot, rows, cached, np.array(pages, np.int32), "last")
    with pytest.raises(error):
        runtime.run(StepInput(np.array(tokens, np.int32), (sequence,)))
    assert (latent.data == 0xFF).all()
    assert torch.isnan(state.state).all()


def test_caches_of_another_model_are_refused() -> None:
    g = MODELS["k3"]
    latent = LatentCache(LatentLayout.of(g, "bf16", 8), 1).views()
    state = StateCache(StateLayout.of(g), 1).views()
    with pytest.raises(CacheError, match="layers"):
        StandardRuntime(g, _weights("k3"), latent[:-1], state)
