"""Caches as an op sees them: tensors it does not own, one layer at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

KvDtype = Literal["bf16", "fp8"]


def record_bytes(dtype: KvDtype, latent: int, rope: int) -> int:
    """Bytes of one cached token: BF16 numbers, or e4m3 numbers and two FP32 scales."""
    numbers = latent + rope
    return 2 * numbers if dtype == "bf16" else numbers + 8


@dataclass(frozen=True, slots=True)
class LatentView:
    """Latent KV of one MLA layer: uint8 [pages, page_tokens, record]; any stride over pages."""

    data: Tensor
    dtype: KvDtype
    latent: int
    rope: int

    @property
    def page_tokens(self) -> int:
        return int(self.data.shape[1])


@dataclass(frozen=True, slots=True)
class StateView:
    """KDA caches of one layer.

    `state` FP32 [slots, heads, dim/32, dim (k), 32 (v)]; `conv` BF16 [slots, 3 past inputs (oldest
    first), 3 (q, k, v), width]. Any stride over slots.
    """

    state: Tensor
    conv: Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, start + rows) of a step are one sequence's; as SequenceRows without logits."""

    start: int
    rows: int
    slot: int
    cached: int
    pages: NDArray[np.int32]
