"""The judge itself: absorbed equals expanded, carrying on equals starting over."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stepfuse.core.config import Geometry
from tests.support.geometries import flat, small_k3, small_linear
from tests.support.random_weights import random_tensors
from tests.support.reference_model import ReferenceCache, ReferenceModel

MODELS = [small_k3(), small_linear()]


@pytest.mark.parametrize("geometry", MODELS, ids=["k3", "linear"])
def test_a_cache_carries_on(geometry: Geometry) -> None:
    model = ReferenceModel(geometry, random_tensors(geometry))
    tokens = [5, 99, 3, 3, 150]
    cache = ReferenceCache()
    parts = [model.logits(tokens[:2], cache), model.logits(tokens[2:], cache)]
    assert torch.equal(torch.cat(parts), model.logits(tokens))


@pytest.mark.parametrize("geometry", MODELS, ids=["k3", "linear"])
def test_absorbed_attention_is_expanded_attention(
    geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every rounding turned into nothing, the two forms are one model."""
    exact = ReferenceModel(geometry, random_tensors(geometry)).logits([5, 99, 3, 7])
    monkeypatch.setattr("tests.support.reference_model.rounded", lambda x: x)
    monkeypatch.setattr("stepfuse.ops.kda.ref.rounded", lambda x: x)
    absorbed = ReferenceModel(geometry, random_tensors(geometry), rounded=True)
    assert torch.allclose(absorbed.logits([5, 99, 3, 7]), exact, rtol=1e-10, atol=1e-12)


def test_every_feature_moves_the_logits() -> None:
    """A tensor that does not matter would make every comparison blind to it."""
    g = replace(
        flat(small_k3()),
        layer_kinds=("kda", "kda", "mla"),
        dense_layers=(True, False, False),
        attn_res_block=2,
    )
    tensors = random_tensors(g)
    tokens = [5, 99]
    before = ReferenceModel(g, tensors).logits(tokens)
    for name, value in tensors.items():
        if ".experts." in name and ".experts.5." not in name:
            continue
        changed = value + 1 if value.dtype == torch.uint8 else value * 1.5
        # The first layer mixes nothing, and with every expert chosen the bias selects nothing.
        silent = "layers.0.self_attention_res" in name or "e_score_correction_bias" in name
        after = ReferenceModel(g, tensors | {name: changed}).logits(tokens)
        assert torch.equal(after, before) == silent, name
