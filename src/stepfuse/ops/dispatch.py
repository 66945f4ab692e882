"""Which implementation of an op runs: the native kernels where the core is built, else PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Literal

Implementation = Literal["native", "eager"]

_forced: Implementation | None = None


@cache
def native_available() -> bool:
    """True when the native core is built and this machine can run it."""
    # A core that is there and cannot be imported is an error, never a silent fall to PyTorch.
    if importlib.util.find_spec("stepfuse._native") is None:
        return False
    return bool(importlib.import_module("stepfuse.ops.native").available())


def chosen() -> Implementation:
    """What ops run now: `native` where the core is built and can run here, unless forced."""
    if _forced is not None:
        return _forced
    return "native" if native_available() else "eager"


@cache
def _load(op: str, which: Implementation) -> ModuleType:
    return importlib.import_module(f"stepfuse.ops.{op}.{which}")


def implementation(op: str) -> ModuleType:
    """The module of `op` that holds the functions of its contract."""
    return _load(op, chosen())


@contextmanager
def forced(which: Implementation) -> Iterator[None]:
    """Run every op with one implementation, e.g. to compare the two. Not for several threads."""
    global _forced
    previous, _forced = _forced, which
    try:
        yield
    finally:
        _forced = previous
