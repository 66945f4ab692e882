"""The page allocator: all or none, owners counted, double use refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfuse.cache.pages import PageAllocator
from stepfuse.core.errors import CacheError


def test_all_or_none() -> None:
    pool = PageAllocator(4)
    taken = pool.alloc(3)
    assert taken.dtype == np.int32
    assert len(set(taken.tolist())) == 3
    with pytest.raises(CacheError, match="2 pages asked for, 1 of 4"):
        pool.alloc(2)
    assert pool.free == 1
    pool.release(taken)
    assert (pool.free, pool.total) == (4, 4)


def test_shared_pages_are_free_after_their_last_owner() -> None:
    pool = PageAllocator(2)
    (page,) = pool.alloc(1).tolist()
    pool.share([page])
    pool.release([page])
    assert (pool.owners(page), pool.free) == (1, 1)
    pool.release([page])
    assert (pool.owners(page), pool.free) == (0, 2)


@pytest.mark.parametrize("pages", [[0], [1, 1], [-1], [9]])
def test_what_is_not_held_cannot_be_given_back(pages: list[int]) -> None:
    pool = PageAllocator(3)
    held = pool.alloc(2).tolist()
    free = ({0, 1, 2} - set(held)).pop()
    named = [free if p == 0 else held[0] if p == 1 else p for p in pages]
    with pytest.raises(CacheError):
        pool.release(named)
    assert [pool.owners(p) for p in held] == [1, 1]
    with pytest.raises(CacheError):
        pool.share([free])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(CacheError):
        PageAllocator(0)


@given(st.lists(st.integers(0, 5), max_size=40))
def test_never_the_same_page_twice(counts: list[int]) -> None:
    pool = PageAllocator(12)
    held: list[np.ndarray] = []
    for count in counts:
        if count <= pool.free:
            held.append(pool.alloc(count))
        elif held:
            pool.release(held.pop(0))
        flat = [p for pages in held for p in pages.tolist()]
        assert len(flat) == len(set(flat)) == pool.total - pool.free
