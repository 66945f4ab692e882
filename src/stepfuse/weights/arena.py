"""The one block of memory all weights stand in, and typed views into it."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

# One huge page, so that the whole arena can stand on huge pages.
ARENA_ALIGNMENT = 2 << 20
# Widest vector load of any ISA level.
FIELD_ALIGNMENT = 64


def aligned(size: int) -> int:
    """`size` rounded up to where the next field may start."""
    return -(-size // FIELD_ALIGNMENT) * FIELD_ALIGNMENT


def allocate_arena(size: int) -> Tensor:
    """uint8 [size], zero, 2 MiB aligned, on huge pages where the system grants them.

    The memory is anonymous and private: a page is taken when it is first written.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    block = mmap.mmap(-1, max(size, 1) + ARENA_ALIGNMENT, flags=flags)
    with suppress(OSError):  # a kernel without huge pages serves small ones
        block.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(block, dtype=torch.uint8)
    skip = -whole.data_ptr() % ARENA_ALIGNMENT
    return whole[skip : skip + size]


def view_at(arena: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous view of `shape` at byte `offset` of the arena."""
    size = math.prod(shape) * dtype.itemsize
    return arena[offset : offset + size].view(dtype).view(shape)


def read_once(arena: Tensor) -> None:
    """Touch every page: the first read of freshly written memory is several times slower."""
    step = 64 << 20
    for begin in range(0, arena.numel(), step):
        part = arena[begin : begin + step]
        torch.sum(part[: part.numel() // 8 * 8].view(torch.int64))
