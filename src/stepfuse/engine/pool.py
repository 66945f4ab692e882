"""The caches of one engine, sized by its memory plan and handed out page by page, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepfuse.cache.kda_state import StateCache, StateLayout
from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.cache.pages import PageAllocator
from stepfuse.core.config import Geometry
from stepfuse.core.errors import MemoryPlanError
from stepfuse.ops.views import KvDtype

# Tokens of one page: 64 records of 576 BF16 numbers are 72 KiB, long enough to stream, short enough
# to waste little at the end of a sequence.
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How many pages and slots an engine gets, and their bytes, before anything is allocated."""

    latent: LatentLayout
    state: StateLayout
    pages: int
    slots: int

    @property
    def bytes(self) -> int:
        return self.pages * self.latent.page_bytes + self.slots * self.state.slot_bytes


@dataclass(frozen=True, slots=True)
class CacheWish:
    """What was asked for; `cache_bytes` None takes what the other two need."""

    kv_cache_dtype: KvDtype
    max_model_len: int
    max_num_seqs: int
    cache_bytes: int | None


def plan_caches(geometry: Geometry, wish: CacheWish) -> CachePlan:
    """Slots for every running request, then as many pages as fit, up to all of them in full.

    Raises MemoryPlanError where not even one request of max_model_len fits cache_bytes.
    """
    latent = LatentLayout.of(geometry, wish.kv_cache_dtype, PAGE_TOKENS)
    state = StateLayout.of(geometry)
    each = -(-wish.max_model_len // PAGE_TOKENS)
    full = CachePlan(latent, state, each * wish.max_num_seqs, wish.max_num_seqs)
    if wish.cache_bytes is None or full.bytes <= wish.cache_bytes:
        return full
    left = wish.cache_bytes - full.slots * state.slot_bytes
    pages = left // latent.page_bytes if latent.page_bytes else full.pages
    if pages < each:
        least = CachePlan(latent, state, each, wish.max_num_seqs).bytes
        raise MemoryPlanError(
            f"cache_bytes={wish.cache_bytes} hold {max(pages, 0)} pages beside {full.slots} state "
            f"slots of {state.slot_bytes} bytes, but one request of max_model_len="
            f"{wish.max_model_len} needs {each}: give at least {least} bytes, or lower "
            "max_model_len or max_num_seqs"
        )
    return CachePlan(latent, state, pages, wish.max_num_seqs)


class Caches:
    """The pool the scheduler draws from, over one LatentCache and one StateCache."""

    def __init__(self, plan: CachePlan) -> None:
        self.latent = LatentCache(plan.latent, plan.pages)
        self.state = StateCache(plan.state, plan.slots)
        self._pages = PageAllocator(plan.pages)

    @property
    def page_tokens(self) -> int:
        return self.latent.layout.page_tokens

    @property
    def free_pages(self) -> int:
        return self._pages.free

    @property
    def free_slots(self) -> int:
        return self.state.free

    def take_pages(self, count: int) -> NDArray[np.int32]:
        return self._pages.alloc(count)

    def give_pages(self, pages: NDArray[np.int32]) -> None:
        self._pages.release(pages)

    def take_slot(self) -> int:
        return self.state.alloc()

    def give_slot(self, slot: int) -> None:
        self.state.release(slot)

    def close(self) -> None:
        """Let go of the memory; nothing may be taken or run afterwards."""
        del self.latent, self.state
