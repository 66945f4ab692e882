"""Prompts and held-out data of the bundled model."""

from __future__ import annotations

from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.engine.location import resolve_model
from stepfuse.evals.heldout import Heldout, read_heldout


def held_out() -> Heldout:
    return read_heldout(resolve_model("k3-tiny"))


def held_out_prompts(count: int) -> list[list[int]]:
    """Beginnings of held-out texts of very different lengths (1 to 300 tokens), behind BOS."""
    tokenizer = TiktokenTokenizer.load(resolve_model("k3-tiny"))
    assert tokenizer is not None
    assert tokenizer.bos_id is not None
    texts = [ids for text in held_out().texts if len(ids := tokenizer.encode(text)) >= 300]
    lengths = [1 + (i * i * 299) // max(1, (count - 1) ** 2) for i in range(count)]
    return [
        [tokenizer.bos_id, *texts[i % len(texts)][i : i + length - 1]]
        for i, length in enumerate(lengths)
    ]
