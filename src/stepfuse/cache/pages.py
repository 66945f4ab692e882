"""Which pages of latent KV are taken, and by how many. Knows indices only, no memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stepfuse.core.errors import CacheError


class PageAllocator:
    """`pages` page indices, each free or held by one or more owners.

    The lowest free index is not promised; a page given back last is taken first, while its lines
    may still be in a cache.
    """

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise CacheError(f"a page pool of {pages} pages: give it at least one")
        self._free = list(range(pages - 1, -1, -1))
        self._owners = np.zeros(pages, dtype=np.int32)

    @property
    def total(self) -> int:
        return len(self._owners)

    @property
    def free(self) -> int:
        return len(self._free)

    def alloc(self, count: int) -> NDArray[np.int32]:
        """Take `count` pages, int32 [count], one owner each. All or none: CacheError when short."""
        if count < 0 or count > self.free:
            raise CacheError(
                f"{count} pages asked for, {self.free} of {self.total} are free: "
                "wait for a request to end, or raise cache_bytes"
            )
        taken = np.array([self._free.pop() for _ in range(count)], dtype=np.int32)
        self._owners[taken] = 1
        return taken

    def share(self, pages: Iterable[int] | NDArray[np.int32]) -> None:
        """Add one owner to each page; CacheError for a page that is free."""
        for page in self._held(pages):
            self._owners[page] += 1

    def release(self, pages: Iterable[int] | NDArray[np.int32]) -> None:
        """Drop one owner of each page; a page without owners is free again.

        CacheError, with nothing changed, for a page that is free or named more often than owned.
        """
        held = self._held(pages)
        counts = np.bincount(held, minlength=self.total) if held else np.zeros(self.total, int)
        over = np.flatnonzero(counts > self._owners)
        if len(over):
            raise CacheError(f"page {int(over[0])} given back more often than it was taken")
        for page in held:
            self._owners[page] -= 1
            if self._owners[page] == 0:
                self._free.append(page)

    def owners(self, page: int) -> int:
        """How many hold `page`; 0 is free."""
        (page,) = self._inside([page])
        return int(self._owners[page])

    def _inside(self, pages: Iterable[int] | NDArray[np.int32]) -> list[int]:
        listed = [int(p) for p in pages]
        for page in listed:
            if not 0 <= page < self.total:
                raise CacheError(f"page {page} does not exist, the pool has {self.total}")
        return listed

    def _held(self, pages: Iterable[int] | NDArray[np.int32]) -> list[int]:
        listed = self._inside(pages)
        for page in listed:
            if self._owners[page] == 0:
                raise CacheError(f"page {page} is free: it was never taken or already given back")
        return listed
