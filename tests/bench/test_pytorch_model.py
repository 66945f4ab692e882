"""The PyTorch peer is the same model: its logits against FP64, and its ways of running agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepfuse.bench.pytorch_model import PlainCaches, PlainDecoder
from stepfuse.bench.pytorch_weights import load_plain
from stepfuse.weights.presets import PRESETS, Shape
from stepfuse.weights.reader import open_checkpoint
from stepfuse.weights.synth import SynthOptions, synth_shape
from tests.support.reference_model import ReferenceModel
from tests.support.tiny import TINY_KIMI_LINEAR, tiny_k3
from tests.support.tolerance import relative_error

TOKENS = 24
# Every expert is chosen, so no rounding can turn a choice.
K3_FLAT = replace(PRESETS["k3-flat"], vocab=512)
LINEAR_FLAT = replace(TINY_KIMI_LINEAR, hidden=256, dense=512, experts=8, top_k=8)


def _tokens(vocab: int) -> torch.Tensor:
    return torch.from_numpy(np.random.RandomState(5).randint(0, vocab, TOKENS)).long()


# The contract rounds each product's input to BF16 and that costs 1.2 % of k3-flat's logits (median)
# and up to 3 % (docs/numerics.md). This peer rounds each product's output, keys and values as well:
# independent roundings of the same size, so sqrt(2) to 2 times that.
@pytest.mark.parametrize(
    ("shape", "middle", "worst"), [(K3_FLAT, 0.024, 0.06), (LINEAR_FLAT, 0.018, 0.026)]
)
def test_logits_are_those_of_the_reference(
    shape: Shape, middle: float, worst: float, tmp_path: Path
) -> None:
    synth_shape(shape, tmp_path, SynthOptions(quiet=True, overwrite=True))
    model = load_plain(tmp_path)
    g, tokens = model.geometry, _tokens(shape.vocab)
    files = open_checkpoint(tmp_path)
    tensors = {name[len(g.tensor_prefix) :]: files.tensor(name) for name in files.entries}
    exact = ReferenceModel(g, tensors).logits(tokens.tolist())
    caches = PlainCaches(g, 1, TOKENS)
    decoder = PlainDecoder(model)
    got = torch.cat([decoder.forward(t.view(1, 1), caches) for t in tokens])
    error = relative_error(got, exact)
    assert float(error.median()) <= middle
    assert float(error.max()) <= worst


def test_several_rows_at_once_are_the_rows_one_by_one(tmp_path: Path) -> None:
    """Prefill, verify and batched decode compute what single steps compute, up to BF16 rounding of
    differently ordered sums.
    """
    synth_shape(K3_FLAT, tmp_path, SynthOptions(quiet=True, overwrite=True))
    decoder = PlainDecoder(load_plain(tmp_path))
    g, tokens = decoder.g, _tokens(K3_FLAT.vocab)
    one = PlainCaches(g, 1, TOKENS)
    single = torch.cat([decoder.forward(t.view(1, 1), one) for t in tokens])
    chunked, both = PlainCaches(g, 1, TOKENS), PlainCaches(g, 2, TOKENS)
    parts = [decoder.forward(t.view(1, -1), chunked) for t in tokens.split((16, 1, 7))]
    pair = torch.stack([tokens, tokens.flip(0)])
    rows = torch.stack([decoder.forward(t.view(2, 1), both)[0] for t in pair.T])
    for got in (torch.cat(parts), rows):
        assert float(relative_error(got, single.double()).max()) <= 0.06
    last = decoder.forward(tokens.view(1, -1), PlainCaches(g, 1, TOKENS), every_row=False)
    assert float(relative_error(last, single[-1:].double()).max()) <= 0.06


def test_stored_experts_are_the_decoded_ones(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)
    logits = []
    for form in ("bf16", "stored"):
        decoder = PlainDecoder(load_plain(path, form))  # type: ignore[arg-type]
        caches = PlainCaches(decoder.g, 1, TOKENS)
        logits.append(decoder.forward(_tokens(decoder.g.vocab).view(1, -1), caches))
    # Every MXFP4 value is a BF16 value.
    assert torch.equal(*logits)
