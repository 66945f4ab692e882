"""The native core as ops see it: its level, its thread team, and what may cross into it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepfuse import _native
from stepfuse.core.config import ActivationGeometry
from stepfuse.core.env import forced_level
from stepfuse.core.errors import NativeError
from stepfuse.ops.views import Span

Team = _native.Team


def available() -> bool:
    """True: importing this module needs the core. Callers treat ModuleNotFoundError as False."""
    return True


def levels() -> list[str]:
    """The levels this processor and build can run, the best one last."""
    return _native.levels()


def level() -> str:
    """The level ops run on now."""
    return _native.level()


def set_level(name: str) -> None:
    """Run ops on level `name` from now on. Raises NativeError where it cannot run."""
    try:
        _native.set_level(name)
    except ValueError as error:
        raise NativeError(f"{error}; this machine runs {', '.join(levels())}") from None


def cores() -> int:
    """Physical cores among the processors this process may use."""
    return _native.cores()


def read_gbps(team: Team) -> float:
    """Median bandwidth of all members reading random data together, GB/s."""
    return _native.read_bandwidth(team)["median_gbps"]


def ping_pong_ns(team: Team) -> float | None:
    """Time of one line's way between two members and back, ns; None in a team of one."""
    return _native.ping_pong(team) if team.threads > 1 else None


def kernel_bench(team: Team, size: int) -> _native.KernelBench:
    """Times kernels on `size` bytes of random weights (native/step/kernel_bench.h)."""
    return _native.KernelBench(team, size)


def address(x: Tensor, dtype: torch.dtype, what: str) -> int:
    """Address of a contiguous CPU tensor. Raises NativeError naming `what` on any other."""
    if x.dtype != dtype or x.device.type != "cpu" or not x.is_contiguous():
        raise NativeError(
            f"{what}: {x.dtype} on {x.device} with strides {x.stride()}; "
            f"the native kernels want contiguous {dtype} on cpu"
        )
    return x.data_ptr()


def floats(x: Tensor, what: str) -> int:
    """Address of contiguous FP32."""
    return address(x, torch.float32, what)


def words(x: Tensor, what: str) -> int:
    """Address of contiguous BF16, or of its 16-bit patterns."""
    return address(x, torch.bfloat16 if x.dtype == torch.bfloat16 else torch.int16, what)


def want(ok: bool, what: str) -> None:
    """Raise NativeError(what) unless ok."""
    if not ok:
        raise NativeError(what)


def check_range(values: NDArray[np.integer], count: int, what: str) -> None:
    """Raise NativeError unless every value lies in [0, count)."""
    if values.size and (values.min() < 0 or values.max() >= count):
        want(False, f"{what} {values.min()}..{values.max()}: only 0..{count - 1} exist")


def activation(geometry: ActivationGeometry) -> _native.Activation:
    """The core's form of a gated activation."""
    return _native.Activation(geometry.kind == "situ", geometry.beta, geometry.linear_beta)


def span_rows(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Spans that have rows as int64 [n, 4]: start, rows, slot, cached."""
    rows = [(s.start, s.rows, s.slot, s.cached) for s in spans if s.rows > 0]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def page_table(spans: Sequence[Span], page_tokens: int) -> NDArray[np.int32]:
    """Page tables of the spans that have rows, int32 [n, longest], zeros behind each.

    Raises NativeError where a table is shorter than its cached and present tokens.
    """
    used = [s for s in spans if s.rows > 0]
    needs = [-(-(s.cached + s.rows) // page_tokens) for s in used]
    table = np.zeros((len(used), max(needs, default=0)), dtype=np.int32)
    for i, (span, need) in enumerate(zip(used, needs, strict=True)):
        want(
            len(span.pages) >= need,
            f"page table of slot {span.slot}: {len(span.pages)} pages for "
            f"{span.cached + span.rows} tokens; {need} are needed",
        )
        table[i, :need] = span.pages[:need]
    return table


_forced = forced_level()
if _forced is not None:
    set_level(_forced)
