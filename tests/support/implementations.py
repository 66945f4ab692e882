"""Run a test once with the PyTorch implementation of every op and once with the native kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stepfuse.ops.dispatch import Implementation, forced, native_available

each_implementation = pytest.mark.parametrize("which", ["eager", "native"])


@contextmanager
def running(which: Implementation) -> Iterator[None]:
    """Ops inside run `which`; the test is skipped, visibly, where the native core is not built."""
    if which == "native" and not native_available():
        pytest.skip("the native core is not built")
    with forced(which):
        yield
