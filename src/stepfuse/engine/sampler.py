"""From logits to the next token of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from stepfuse.engine.request import TokenLogprob
from stepfuse.engine.sequence import Request
from stepfuse.ops.sample import SampleParams, sample, top_logprobs


@dataclass(frozen=True, slots=True)
class Pick:
    """`token` is None where the row's logits hold no distribution (a NaN or +inf)."""

    token: int | None
    logprob: TokenLogprob | None = None


def choose(logits: torch.Tensor, requests: Sequence[Request]) -> list[Pick]:
    """One pick per row of `logits` FP32 [n, vocab], in the order of `requests`.

    A draw depends on the request's seed and the index of the token alone, so neither the other
    rows nor a preemption change it.
    """
    params = [r.params for r in requests]
    wanted = any(p.logprobs is not None for p in params)
    if all(p.temperature == 0 for p in params):
        rows = _greedy(len(requests))
    else:
        rows = SampleParams(
            temperature=np.array([p.temperature for p in params], dtype=np.float64),
            top_k=np.array([p.top_k for p in params], dtype=np.int64),
            top_p=np.array([p.top_p for p in params], dtype=np.float64),
            min_p=np.array([p.min_p for p in params], dtype=np.float64),
            seed=np.array([r.seed for r in requests], dtype=np.uint64),
            position=np.array([r.count for r in requests], dtype=np.int64),
        )
    drawn = sample(logits, rows, wanted)
    if not wanted and not drawn.failed.any():
        return [Pick(token) for token in drawn.ids.tolist()]
    picks = zip(drawn.ids.tolist(), drawn.logprobs.tolist(), drawn.failed.tolist(), strict=True)
    return [
        Pick(None) if failed else Pick(token, _logprob(logits[i], token, value, params[i].logprobs))
        for i, (token, value, failed) in enumerate(picks)
    ]


@cache
def _greedy(rows: int) -> SampleParams:
    """Built once per width: a small model decodes in some hundred microseconds."""
    return SampleParams.greedy(rows)


def _logprob(row: torch.Tensor, token: int, value: float, count: int | None) -> TokenLogprob | None:
    if count is None:
        return None
    if count == 0:
        return TokenLogprob(token, value)
    ids, values = top_logprobs(row, min(count, row.numel()))
    return TokenLogprob(token, value, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
