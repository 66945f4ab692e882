"""The distribution a token is drawn from, written out in plain Python."""

from __future__ import annotations

import math


def distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> list[float]:
    """Probabilities after temperature, min_p, top_k and top_p, in that order; they sum to 1."""
    if temperature == 0:
        winner = logits.index(max(logits))
        return [1.0 if i == winner else 0.0 for i in range(len(logits))]
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    kept = [i for i in range(len(logits)) if weights[i] >= min_p]
    kept.sort(key=lambda i: (-weights[i], i))
    if top_k > 0:
        kept = kept[:top_k]
    total = sum(weights[i] for i in kept)
    prefix: list[int] = []
    for i in kept:
        prefix.append(i)
        if sum(weights[j] for j in prefix) >= top_p * total:
            break
    total = sum(weights[i] for i in prefix)
    return [weights[i] / total if i in prefix else 0.0 for i in range(len(logits))]
