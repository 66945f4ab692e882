"""Running a kernel test on every ISA level, and outputs that show what a kernel wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

native = pytest.importorskip("stepfuse.ops.native", reason="the native core is not built")

LEVELS = ("scalar", "avx2", "avx512", "avx512_bf16")
each_level = pytest.mark.parametrize("level", LEVELS)

# Unit roundoff of FP32.
U32 = 2.0**-24
_CANARY = 1.0e30
_TAIL = 64


@contextmanager
def on_level(level: str) -> Iterator[None]:
    """Run the body on `level`; a level this machine lacks is a skip, which the report counts."""
    if level not in native.levels():
        pytest.skip(f"level {level} cannot run here")
    before = native.level()
    native.set_level(level)
    try:
        assert native.level() == level
        yield
    finally:
        native.set_level(before)


class Guarded:
    """FP32 output of `shape`: NaN before the call, canaries behind it."""

    def __init__(self, *shape: int) -> None:
        size = int(np.prod(shape))
        self._all = torch.full((size + _TAIL,), _CANARY)
        self._all[:size] = torch.nan
        self._size = size
        self.view = self._all[:size].view(shape)

    def result(self) -> Tensor:
        """The output, after checking that the kernel wrote all of it and nothing behind."""
        assert bool((self._all[self._size :] == _CANARY).all()), "a kernel wrote past its output"
        assert not bool(self.view.isnan().any()), "a kernel left a part of its output"
        return self.view


def teams() -> list[native.Team | None]:
    """No team, and teams of 1 to 4 threads."""
    return [None, *(native.Team(n, pin=False, spin_us=0.0) for n in (1, 2, 3, 4))]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)))


def dot_bound(x: Tensor, weight: Tensor) -> Tensor:
    """FP64 bound [R, N] of an FP32 dot product's error, in any order: K u sum |x w|."""
    terms = x.shape[-1] + 2
    return terms * U32 * (x.abs().double() @ weight.abs().double().T)
