"""Store transformers' logits of a random Kimi-Linear in transformers_kimi_linear.npz.

    python -m tests.golden.make_transformers_kimi_linear

needs transformers 5.24 (`make oracles`). The model runs in FP32 on CPU, so it rounds nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.support.checksum import checksum
from tests.support.geometries import small_linear
from tests.support.random_weights import random_tensors
from tests.support.saved_checkpoint import save_released

SEED = 12
TOKENS = 24
HERE = Path(__file__).parent


def oracle_tokens(vocab: int) -> list[int]:
    """The token ids whose logits are stored."""
    return np.random.RandomState(SEED).randint(0, vocab, TOKENS).tolist()


def transformers_logits(
    checkpoint: Path, tokens: list[int], save_to: Path | None = None
) -> torch.Tensor:
    """Logits FP32 [T, vocab] of transformers' class; `save_to` writes the model in its own form."""
    from transformers import KimiLinearForCausalLM

    model = KimiLinearForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    if save_to is not None:
        model.save_pretrained(save_to)
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def main() -> None:
    import transformers

    geometry = small_linear()
    tensors = random_tensors(geometry, SEED)
    tokens = oracle_tokens(geometry.vocab)
    with tempfile.TemporaryDirectory() as folder:
        save_released(Path(folder), geometry, tensors)
        logits = transformers_logits(Path(folder), tokens)
    origin = (
        f"transformers {transformers.__version__} KimiLinearForCausalLM, FP32 on CPU; checkpoint "
        f"random_tensors(small_linear(), {SEED})"
    )
    np.savez_compressed(
        HERE / "transformers_kimi_linear.npz",
        tokens=np.array(tokens, dtype=np.int32),
        logits=logits.numpy(),
        weights_checksum=checksum(tensors),
        origin=origin,
    )


if __name__ == "__main__":
    main()
