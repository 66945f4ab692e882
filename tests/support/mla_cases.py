"""Paged latent caches with canaries, and what the reference makes of random queries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepfuse.ops.mla.ref import cached, mla
from stepfuse.ops.views import KvDtype, LatentView, Span, record_bytes

CANARY = 0xFF  # NaN in both record types


def canary_view(dtype: KvDtype, pages: int, page_tokens: int, latent: int, rope: int) -> LatentView:
    """Every byte is a canary; pages lie 64 bytes further apart than they are long."""
    record = record_bytes(dtype, latent, rope)
    size = page_tokens * record
    storage = torch.full((pages, size + 64), CANARY, dtype=torch.uint8)
    data = storage.as_strided((pages, page_tokens, record), (size + 64, record, 1))
    return LatentView(data, dtype, latent, rope)


def page_table(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int32)


def random_rows(rows: int, heads: int, latent: int, rope: int, seed: int = 0) -> list[Tensor]:
    """latent [R, L], pe [R, P], q_latent [R, H, L], q_pe [R, H, P]."""
    make = torch.Generator().manual_seed(seed)
    shapes = ((rows, latent), (rows, rope), (rows, heads, latent), (rows, heads, rope))
    return [torch.randn(*shape, generator=make) for shape in shapes]


def reference(rows: list[Tensor], dtype: KvDtype, scale: float, last: int) -> Tensor:
    """FP64 outputs [last, H, L] of the last rows of one sequence of all `rows`."""
    latent, pe, q_latent, q_pe = (t.double() for t in rows)
    kept = torch.stack([cached(t, dtype) for t in latent])
    kept_pe = torch.stack([cached(t, dtype) for t in pe])
    return mla((q_latent[-last:], q_pe[-last:]), kept, kept_pe, scale).out


def span(start: int, rows: int, cached_tokens: int, pages: np.ndarray) -> Span:
    return Span(start, rows, 0, cached_tokens, pages)
