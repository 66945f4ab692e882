"""The state pool: zero on taking, no inherited state, snapshots bound to their position."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stepfuse.cache.kda_state import StateCache, StateLayout
from stepfuse.core.errors import CacheError
from tests.support.geometries import small_k3


def _cache(slots: int = 3) -> StateCache:
    return StateCache(StateLayout.of(small_k3()), slots)


def test_a_taken_slot_is_zero_whatever_it_held() -> None:
    cache = _cache()
    slot = cache.alloc()
    cache.state[:, slot] = 3.0
    cache.conv[:, slot] = 3.0
    cache.release(slot)
    assert cache.alloc() == slot
    assert not cache.state[:, slot].any()
    assert not cache.conv[:, slot].any()


def test_slots_run_out_and_double_release_is_refused() -> None:
    cache = _cache(2)
    first, second = cache.alloc(), cache.alloc()
    assert {first, second} == {0, 1}
    with pytest.raises(CacheError, match="max_num_seqs"):
        cache.alloc()
    cache.release(first)
    with pytest.raises(CacheError):
        cache.release(first)
    with pytest.raises(CacheError):
        cache.release(7)


def test_snapshot_and_restore_are_exact_and_touch_one_slot() -> None:
    cache = _cache()
    cache.state.normal_()
    cache.conv.normal_()
    state, conv = cache.state.clone(), cache.conv.clone()
    saved = cache.snapshot(1, tokens=64)
    cache.state[:, 1] = 0
    cache.conv[:, 1] = 0
    cache.restore(1, saved, tokens=64)
    assert torch.equal(cache.state, state)
    assert torch.equal(cache.conv, conv)
    cache.restore(2, saved, tokens=64)
    assert torch.equal(cache.state[:, 2], state[:, 1])
    assert torch.equal(cache.state[:, 0], state[:, 0])


def test_restored_kv_and_state_from_different_positions_are_refused() -> None:
    cache = _cache()
    saved = cache.snapshot(0, tokens=64)
    cache.state.fill_(5.0)
    with pytest.raises(CacheError, match="different positions"):
        cache.restore(0, saved, tokens=65)
    assert (cache.state == 5.0).all()


def test_a_snapshot_of_another_geometry_is_refused() -> None:
    cache = _cache()
    other = StateCache(replace(cache.layout, heads=2), 1)
    with pytest.raises(CacheError, match="does not fit"):
        cache.restore(0, other.snapshot(0, 1), tokens=1)


def test_bytes_are_as_planned() -> None:
    cache = _cache(5)
    held = cache.state.numel() * 4 + cache.conv.numel() * 2
    assert held == 5 * cache.layout.slot_bytes


def test_refusals() -> None:
    with pytest.raises(CacheError):
        StateCache(StateLayout(1, 1, 48, 3), 1)
    with pytest.raises(CacheError):
        _cache(0)
    with pytest.raises(CacheError):
        _cache().view(99)
