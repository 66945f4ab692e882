"""Kimi-Linear against transformers' class: stored logits always, live ones if it is installed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.runtime.plan import Path as Backend
from stepfuse.weights.load import LoadOptions, load
from tests.golden.make_transformers_kimi_linear import SEED, transformers_logits
from tests.support.backends import each_backend, logits_of
from tests.support.checksum import checksum
from tests.support.geometries import small_linear
from tests.support.pack_weights import pack_model
from tests.support.random_weights import random_tensors
from tests.support.reference_model import ReferenceModel
from tests.support.saved_checkpoint import save_released
from tests.support.tolerance import relative_error

STORED = Path(__file__).parents[1] / "golden" / "transformers_kimi_linear.npz"


@cache
def _tensors() -> dict[str, Tensor]:
    return random_tensors(small_linear(), SEED)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(STORED) as file:
        return dict(file)


def test_the_weights_are_those_of_the_stored_run(stored: dict[str, np.ndarray]) -> None:
    assert checksum(_tensors()) == str(stored["weights_checksum"])
    assert "transformers" in str(stored["origin"])


def test_the_reference_is_transformers(stored: dict[str, np.ndarray]) -> None:
    """transformers computes in FP32 here: its sums, of up to 160 terms in 6 layers, leave 1e-5."""
    exact = ReferenceModel(small_linear(), _tensors()).logits(stored["tokens"].tolist())
    assert float(relative_error(exact, torch.from_numpy(stored["logits"])).max()) <= 3e-5


@each_backend
def test_both_backends_follow_transformers(backend: Backend, stored: dict[str, np.ndarray]) -> None:
    """No further from its FP32 logits than the rounding of product inputs moves the reference."""
    g = small_linear()
    tokens = stored["tokens"].tolist()
    rounded = ReferenceModel(g, _tensors(), rounded=True, kv="bf16").logits(tokens)
    want = torch.from_numpy(stored["logits"])
    got = logits_of(backend, g, pack_model(g, _tensors()), tokens)
    cost, error = relative_error(rounded, want), relative_error(got, want)
    assert float(error.median()) <= 1.25 * float(cost.median())
    assert float(error.max()) <= 1.5 * float(cost.max())


@each_backend
def test_a_model_saved_by_transformers(backend: Backend, tmp_path: Path) -> None:
    """Random weights through transformers' save_pretrained and our loader: its live logits."""
    pytest.importorskip("transformers", reason="the oracles extra is not installed")
    g = small_linear()
    save_released(tmp_path / "released", g, _tensors())
    tokens = np.random.RandomState(3).randint(0, g.vocab, 20).tolist()
    want = transformers_logits(tmp_path / "released", tokens, save_to=tmp_path / "saved")
    loaded = load(tmp_path / "saved", LoadOptions(quiet=True))
    got = logits_of(backend, loaded.geometry, loaded.weights, tokens)
    rounded = ReferenceModel(g, _tensors(), rounded=True, kv="bf16").logits(tokens)
    cost, error = relative_error(rounded, want), relative_error(got, want)
    assert float(error.median()) <= 1.25 * float(cost.median())
    assert float(error.max()) <= 1.5 * float(cost.max())
