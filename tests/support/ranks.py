"""A small ranks file in the released format, for tests without a checkpoint."""

from __future__ import annotations

import base64
import json
from pathlib import Path

MERGES = ("th", "he", "the", " t", " the", "in", "ing", "12", "123", "你好", "zz", "zzzz")


def write_tokenizer(folder: Path, config: dict[str, object] | None = None) -> int:
    """Write `tiktoken.model` and `tokenizer_config.json`; returns the number of base ranks."""
    tokens = [bytes([b]) for b in range(256)]
    tokens += ["你".encode()[:2], "你".encode(), "好".encode()[:2], "好".encode()]
    tokens += [m.encode() for m in MERGES]
    lines = [f"{base64.b64encode(t).decode()} {i}" for i, t in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    base = len(tokens)
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 5: "<|sep|>", 255: "[PAD]"}
    full: dict[str, object] = {
        "added_tokens_decoder": {str(base + i): {"content": n} for i, n in names.items()},
        "bos_token": "[BOS]",
        "eos_token": {"content": "[EOS]"},
    }
    full.update(config or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(full))
    return base
