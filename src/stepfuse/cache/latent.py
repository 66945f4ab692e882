"""Paged latent KV of every MLA layer in one allocation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError
from stepfuse.ops.views import KvDtype, LatentView, record_bytes


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """What decides the bytes: MLA layers, latent and pe numbers per token, dtype, page size."""

    layers: int
    latent: int
    rope: int
    dtype: KvDtype
    page_tokens: int

    @classmethod
    def of(cls, geometry: Geometry, dtype: KvDtype, page_tokens: int) -> LatentLayout:
        mla = geometry.mla
        return cls(len(geometry.mla_layers), mla.kv_lora, mla.rope, dtype, page_tokens)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return record_bytes(self.dtype, self.latent, self.rope)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page index over all layers."""
        return self.layers * self.page_tokens * self.token_bytes


class LatentCache:
    """uint8 [layers, pages, page_tokens, record], zeroed; a page index means the same page number
    in every layer.
    """

    def __init__(self, layout: LatentLayout, pages: int) -> None:
        if pages < 1 or layout.page_tokens < 1:
            raise CacheError(
                f"{pages} pages of {layout.page_tokens} tokens: both must be at least 1"
            )
        self.layout = layout
        self.pages = pages
        shape = (layout.layers, pages, layout.page_tokens, layout.token_bytes)
        self.data: Tensor = torch.zeros(shape, dtype=torch.uint8)

    def view(self, ordinal: int) -> LatentView:
        """The view of the `ordinal`-th MLA layer (0-based among MLA layers)."""
        if not 0 <= ordinal < self.layout.layers:
            raise CacheError(f"MLA layer {ordinal} of {self.layout.layers}: no such cache")
        layout = self.layout
        return LatentView(self.data[ordinal], layout.dtype, layout.latent, layout.rope)

    def views(self) -> tuple[LatentView, ...]:
        """One view per MLA layer, in layer order."""
        return tuple(self.view(i) for i in range(self.layout.layers))
