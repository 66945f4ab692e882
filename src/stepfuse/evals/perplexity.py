"""Perplexity of held-out text, through the engine's own decode backend and caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.core.errors import RequestError
from stepfuse.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`tokens` predicted; `nll` their mean negative log-likelihood in nats; `perplexity` its exp.

    `bits_per_byte` does not depend on the tokenizer.
    """

    tokens: int
    nll: float
    perplexity: float
    bits_per_byte: float


def perplexity(
    engine: Engine,
    texts: Iterable[str],
    window: int = 2048,
    progress: Callable[[str], None] = lambda _: None,
) -> Perplexity:
    """Score every text in windows of at most `window` tokens, each from an empty state.

    Every token but a window's first is predicted (BOS, where the checkpoint has one, comes first
    and is not). Raises RequestError without a tokenizer or without text.
    """
    tokenizer = tokenizer_of(engine)
    count, total, size = 0, 0.0, 0
    for ids in windows(tokenizer, texts, window):
        progress(f"{count} tokens")
        logits = engine.score(ids)[:-1]
        targets = torch.tensor(ids[1:])
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        total += float(losses.double().sum())
        count += len(targets)
        size += sum(len(tokenizer.token_bytes(i)) for i in ids[1:])
    if not count:
        raise RequestError("no text to score: the held-out file has none of two tokens or more")
    nll = total / count
    return Perplexity(count, nll, math.exp(nll), total / size / math.log(2))


def windows(tokenizer: TiktokenTokenizer, texts: Iterable[str], window: int) -> Iterator[list[int]]:
    """Ids of each text cut into windows, behind BOS where the tokenizer names one."""
    lead = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    room = window - len(lead)
    if room < 2:
        raise RequestError(f"window is {window}: it must be at least {2 + len(lead)}")
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), room):
            part = [*lead, *ids[start : start + room]]
            if len(part) > 1:
                yield part


def tokenizer_of(engine: Engine) -> TiktokenTokenizer:
    tokenizer = engine.parts.tokenizer
    if tokenizer is None:
        raise RequestError(f"{engine.parts.facts.model} has no tokenizer files: no evaluation")
    return tokenizer
