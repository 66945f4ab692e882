"""From logits to the next token of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepfuse.engine.request import TokenLogprob
from stepfuse.engine.sequence import Request


@dataclass(frozen=True, slots=True)
class Pick:
    """`token` is None where the row's logits hold a NaN."""

    token: int | None
    logprob: TokenLogprob | None = None


def choose(logits: torch.Tensor, requests: Sequence[Request]) -> list[Pick]:
    """One pick per row of `logits` FP32 [n, vocab], in the order of `requests`."""
    ids = logits.argmax(-1).tolist()
    bad = torch.isnan(logits).any(-1).tolist()
    return [
        Pick(None) if nan else Pick(i, _logprob(logits[row], i, request.params.logprobs))
        for row, (i, nan, request) in enumerate(zip(ids, bad, requests, strict=True))
    ]


def _logprob(row: torch.Tensor, token: int, count: int | None) -> TokenLogprob | None:
    """Log-softmax of the raw logits: temperature and truncation do not enter."""
    if count is None:
        return None
    norm = torch.logsumexp(row, dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = torch.topk(row, min(count, row.numel()))
        top = tuple(zip(ids.tolist(), (values - norm).tolist(), strict=True))
    return TokenLogprob(token, float(row[token] - norm), top)
