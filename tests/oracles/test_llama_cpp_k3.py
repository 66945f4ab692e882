"""K3 against llama.cpp's own graph (stored logits; tests/golden/make_llama_cpp_k3.py)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.runtime.plan import Path as Backend
from tests.golden.make_llama_cpp_k3 import SEED, oracle_geometry
from tests.support.backends import each_backend, logits_of
from tests.support.checksum import checksum
from tests.support.pack_weights import pack_model
from tests.support.random_weights import random_tensors
from tests.support.reference_model import ReferenceModel
from tests.support.tolerance import relative_error

STORED = Path(__file__).parents[1] / "golden" / "llama_cpp_k3.npz"


@cache
def _tensors() -> dict[str, Tensor]:
    return random_tensors(oracle_geometry(), SEED)


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(STORED) as file:
        return dict(file)


@cache
def _exact(tokens: tuple[int, ...]) -> Tensor:
    return ReferenceModel(oracle_geometry(), _tensors()).logits(list(tokens))


def test_the_weights_are_those_of_the_stored_run(stored: dict[str, np.ndarray]) -> None:
    assert checksum(_tensors()) == str(stored["weights_checksum"])
    assert "llama.cpp" in str(stored["origin"])


def test_the_reference_is_llama_cpp(stored: dict[str, np.ndarray]) -> None:
    """llama.cpp computes in FP32 here: its sums, of up to 160 terms in 7 layers, leave 1e-5."""
    want = torch.from_numpy(stored["logits"])
    error = relative_error(_exact(tuple(stored["tokens"].tolist())), want)
    assert float(error.max()) <= 3e-5


@each_backend
def test_both_backends_follow_llama_cpp(backend: Backend, stored: dict[str, np.ndarray]) -> None:
    """They round product inputs to BF16, llama.cpp does not: no further from it than that costs
    the reference.
    """
    g = oracle_geometry()
    tokens = stored["tokens"].tolist()
    rounded = ReferenceModel(g, _tensors(), rounded=True, kv="bf16").logits(tokens)
    want = torch.from_numpy(stored["logits"])
    got = logits_of(backend, g, pack_model(g, _tensors()), tokens)
    cost, error = relative_error(rounded, want), relative_error(got, want)
    assert float(error.median()) <= 1.25 * float(cost.median())
    assert float(error.max()) <= 1.5 * float(cost.max())
