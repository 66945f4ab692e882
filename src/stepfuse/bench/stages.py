"""Where a specialized step's time goes: work and waits by kind of stage, from the native trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepfuse.bench.step import WAKE, StageTime, StepBench, submit_wave
from stepfuse.core.errors import UnsupportedError
from stepfuse.engine.engine import Engine
from stepfuse.runtime.fused import FusedRuntime

# (stage, member, begin ns, end ns), all members of a stage together, stages in program order.
Entries = Sequence[tuple[str, int, int, int]]


def stage_times(engine: Engine, bench: StepBench, rows: int) -> list[StageTime]:
    """Trace one run of the bench at `rows` rows; kinds in program order.

    Means over the middle half of the steps by duration, which one disturbed step cannot move.
    Raises UnsupportedError where the specialized path cannot serve.
    """
    fused = engine.parts.fused
    if not isinstance(fused, FusedRuntime):
        raise UnsupportedError("only specialized steps are traced", list(engine.parts.unsupported))
    ends = [bool(stage["barrier"]) for stage in fused.native.stages()]
    special = Engine.of(replace(engine.parts, backend="latency_specialized"))
    generator = np.random.default_rng(bench.seed)
    with _traced(fused):
        runs = [
            fused.native.trace()
            for _ in range(bench.waves)
            for _ in _steps(special, bench, rows, generator)
        ]
    return breakdown(runs, ends, rows)


def _steps(
    engine: Engine, bench: StepBench, rows: int, generator: np.random.Generator
) -> Iterator[None]:
    """Yields behind every pure decode step of `rows` requests."""
    submit_wave(engine, rows, bench.tokens, generator)
    while engine.step():
        last = engine.statistics.records[-1]
        if last.active == rows and last.native_ns:
            yield


@contextmanager
def _traced(fused: FusedRuntime) -> Iterator[None]:
    fused.native.set_trace(True)
    try:
        yield
    finally:
        fused.native.set_trace(False)


def breakdown(runs: Sequence[Entries], barriers: Sequence[bool], rows: int) -> list[StageTime]:
    """Traces of several runs of one program to times by kind; `barriers`: of each stage."""
    order = sorted(runs, key=_duration)
    middle = order[len(order) // 4 : max(len(order) * 3 // 4, len(order) // 4 + 1)]
    stages = len(barriers)
    names = [_kind(entry[0]) for entry in runs[0][:: len(runs[0]) // stages]]
    totals = np.mean([_work_and_wait(run, stages) for run in middle], axis=0) / 1e6
    found = []
    for kind in (WAKE, *dict.fromkeys(names)):
        own = [i + 1 for i, name in enumerate(names) if name == kind] or [0]
        work, wait = totals[:, own].sum(axis=1).tolist()
        ended = sum(barriers[i - 1] for i in own if i)
        count = len(own) if kind != WAKE else 0
        found.append(StageTime(rows, kind, count, ended, tuple(work), tuple(wait)))
    return found


def _work_and_wait(run: Entries, stages: int) -> NDArray[np.float64]:
    """[2, 1 + stages, members] ns: work, and waiting until the next stage; entry 0 is the wake."""
    times = np.array([entry[2:] for entry in run], dtype=np.float64).reshape(stages, -1, 2)
    begin, end = times[..., 0], times[..., 1]
    result = np.zeros((2, 1 + stages, begin.shape[1]))
    result[0, 1:] = end - begin
    result[1, 0] = begin[0] - begin[0].min()
    result[1, 1:-1] = begin[1:] - end[:-1]
    result[1, -1] = end[-1].max() - end[-1]
    return result


def _duration(run: Entries) -> int:
    return max(e[3] for e in run) - min(e[2] for e in run)


def _kind(stage: str) -> str:
    """`L3.moe.up` and `L4.moe.up` are one kind."""
    head, _, rest = stage.partition(".")
    return rest if head[:1] == "L" and head[1:].isdigit() else stage
