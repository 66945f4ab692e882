"""Latent attention in batched PyTorch over gathered pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stepfuse.ops.mla.records import decode, encode
from stepfuse.ops.views import LatentView, Span

# Scores held at once; longer prompts go through in blocks of rows.
_SCORES_MAX = 1 << 24


def _places(view: LatentView, span: Span, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Page and place in the page of tokens [begin, end) of a span's sequence."""
    tokens = np.arange(begin, end)
    pages = np.asarray(span.pages, dtype=np.int64)[tokens // view.page_tokens]
    return torch.from_numpy(pages), torch.from_numpy(tokens % view.page_tokens)


def latent_write(latent: Tensor, pe: Tensor, view: LatentView, spans: Sequence[Span]) -> None:
    """See `stepfuse.ops.mla.latent_write`."""
    records = encode(latent, pe, view.dtype)
    for span in spans:
        if span.rows == 0:
            continue
        pages, places = _places(view, span, span.cached, span.cached + span.rows)
        rows = records[span.start : span.start + span.rows]
        view.data[pages, places, : rows.shape[1]] = rows


def _attend(
    q: tuple[Tensor, Tensor], kv: tuple[Tensor, Tensor], first: int, scale: float
) -> Tensor:
    """q [R, H, L] and [R, H, P] over kv [T, L] and [T, P]; row i sees tokens up to first + i."""
    q_latent, q_pe = q
    latent, pe = kv
    scores = (
        torch.einsum("rhl,tl->rht", q_latent, latent) + torch.einsum("rhp,tp->rht", q_pe, pe)
    ) * scale
    last = torch.arange(first, first + q_latent.shape[0]).view(-1, 1, 1)
    hidden = torch.arange(latent.shape[0]).view(1, 1, -1) > last
    weights = torch.softmax(scores.masked_fill_(hidden, -torch.inf), dim=-1)
    return torch.einsum("rht,tl->rhl", weights, latent)


def mla(
    q_latent: Tensor,
    q_pe: Tensor,
    view: LatentView,
    spans: Sequence[Span],
    scale: float,
    team: object = None,  # noqa: ARG001
) -> Tensor:
    """See `stepfuse.ops.mla.mla`."""
    out = torch.empty_like(q_latent)
    heads = q_latent.shape[1]
    for span in spans:
        if span.rows == 0:
            continue
        pages, places = _places(view, span, 0, span.cached + span.rows)
        latent, pe = decode(view.data[pages, places], view)
        block = max(1, _SCORES_MAX // (heads * len(places)))
        for begin in range(0, span.rows, block):
            rows = slice(span.start + begin, span.start + min(begin + block, span.rows))
            seen = span.cached + min(begin + block, span.rows)
            kv = (latent[:seen], pe[:seen])
            out[rows] = _attend((q_latent[rows], q_pe[rows]), kv, span.cached + begin, scale)
    return out
