"""Measure an exported `k3-tiny` in PyTorch FP32 and write its model card.

    python -m training.k3_tiny.evaluate --run build/k3-tiny-train

The model is read back from the exported files, so what is measured is what ships.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken
import torch
from torch.nn import functional as F

from training.k3_tiny import card, heldout, tokenizer
from training.k3_tiny.export import DEFAULT_OUT, restored
from training.k3_tiny.geometry import Geometry
from training.k3_tiny.kda import CHUNK
from training.k3_tiny.model import K3

PROMPTS = ('def read_lines(path):\n    """', "class Queue:\n", "import os\nimport sys\n\n")
SAMPLE_TOKENS = 120
TEMPERATURE = 0.7


@torch.no_grad()
def logits_of(model: K3, ids: list[int]) -> torch.Tensor:
    """FP32 logits [len(ids), vocab]; padding to whole chunks comes after them."""
    padded = ids + [0] * (-len(ids) % CHUNK)
    hidden = model(torch.tensor([padded]))[0, : len(ids)]
    logits: torch.Tensor = model.lm_head(hidden)
    return logits


def perplexity(
    model: K3, encoding: tiktoken.Encoding, items: Iterable[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Per kind of text: tokens, perplexity per token, bits per byte."""
    nats: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    for item in items:
        ids = encoding.encode_ordinary(item["text"])
        logits = logits_of(model, [tokenizer.BOS, *ids[:-1]])
        kind = item["kind"]
        nats[kind] += float(F.cross_entropy(logits, torch.tensor(ids), reduction="sum"))
        tokens[kind] += len(ids)
        size[kind] += len(item["text"].encode())
    return {
        kind: {
            "tokens": tokens[kind],
            "perplexity": math.exp(nats[kind] / tokens[kind]),
            "bits_per_byte": nats[kind] / math.log(2) / size[kind],
        }
        for kind in nats
    }


def solved(model: K3, encoding: tiktoken.Encoding, item: dict[str, Any]) -> bool:
    """Whether greedy decoding of the prompt begins with the answer.

    Every answer token being the most likely one, given those before it, is the same thing.
    """
    prompt = [tokenizer.BOS, *encoding.encode_ordinary(item["prompt"])]
    answer = encoding.encode_ordinary(item["answer"])
    best = logits_of(model, prompt + answer[:-1])[len(prompt) - 1 :].argmax(-1)
    return best.tolist() == answer


def accuracy(
    model: K3, encoding: tiktoken.Encoding, items: Iterable[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Per task, recall apart by the nearest gap length: instances and share solved."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for item in items:
        kind = item["kind"]
        if kind == "recall":
            gap = max(g for g in heldout.GAPS if g <= item["gap_tokens"])
            kind = f"recall, gap {gap}+"
        hits[kind].append(solved(model, encoding, item))
    return {k: {"instances": len(v), "accuracy": sum(v) / len(v)} for k, v in hits.items()}


def sample(model: K3, encoding: tiktoken.Encoding, prompt: str, temperature: float) -> str:
    """`prompt` and its continuation; temperature 0 is greedy."""
    generator = torch.Generator().manual_seed(0)
    ids = [tokenizer.BOS, *encoding.encode_ordinary(prompt)]
    for _ in range(SAMPLE_TOKENS):
        logits = logits_of(model, ids)[-1]
        if temperature:
            share = (logits / temperature).softmax(-1)
            token = int(torch.multinomial(share, 1, generator=generator))
        else:
            token = int(logits.argmax())
        if token in (tokenizer.EOS, tokenizer.END_OF_MSG):
            break
        ids.append(token)
    return encoding.decode(ids[1:])


def measure(folder: Path) -> dict[str, Any]:
    """All figures of the card, from the files in `folder`."""
    model, encoding = restored(folder, Geometry()), tokenizer.load(folder)
    items = heldout.read(folder / "heldout.jsonl.gz")
    samples = [(p, t, sample(model, encoding, p, t)) for p in PROMPTS for t in (0.0, TEMPERATURE)]
    return {
        "perplexity": perplexity(model, encoding, (i for i in items if "text" in i)),
        "tasks": accuracy(model, encoding, (i for i in items if "prompt" in i)),
        "samples": [{"prompt": p, "temperature": t, "text": s} for p, t, s in samples],
        "parameters": sum(p.numel() for p in model.parameters()),
        "sample_tokens": SAMPLE_TOKENS,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("build/k3-tiny-train"))
    parser.add_argument("--model", type=Path, default=DEFAULT_OUT)
    args = parser.parse_args()
    torch.set_num_threads(2)
    figures = measure(args.model)
    (args.run / "figures.json").write_text(json.dumps(figures, indent=1))
    record = json.loads((args.run / "record.json").read_text())
    (args.model / "MODEL_CARD.md").write_text(card.text(record, figures))
    print(json.dumps({k: figures[k] for k in ("perplexity", "tasks")}, indent=1))


if __name__ == "__main__":
    main()
