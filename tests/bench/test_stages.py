"""The stage breakdown: on traces written by hand, and on a real engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from stepfuse import Engine
from stepfuse.bench.stage_table import stage_table
from stepfuse.bench.step import StepBench
from tests.support.tiny import tiny_k3

stages = pytest.importorskip("stepfuse.bench.stages")


def _run(scale: int) -> list[tuple[str, int, int, int]]:
    """Two members, three stages; member 1 wakes 2 later, member 0 works longer."""
    begin = 1000
    times = {
        "embed": ((0, 4), (2, 3)),
        "L0.kda.heads": ((5, 15), (4, 9)),
        "L1.kda.heads": ((15, 25), (15, 18)),
    }
    return [
        (name, member, begin + scale * b, begin + scale * e)
        for name, members in times.items()
        for member, (b, e) in enumerate(members)
    ]


def test_work_and_wait_add_up_to_the_step() -> None:
    million = 1_000_000
    found = stages.breakdown([_run(million)], [True, True, False], rows=2)
    by_kind = {t.kind: t for t in found}
    assert list(by_kind) == ["wake", "embed", "kda.heads"]
    assert by_kind["wake"].wait_ms == (0, 2)
    assert by_kind["embed"].work_ms == (4, 1)
    assert by_kind["embed"].wait_ms == (1, 1)
    heads = by_kind["kda.heads"]
    assert (heads.stages, heads.barriers) == (2, 1)
    assert heads.work_ms == (20, 8)
    assert heads.wait_ms == (0, 13)
    for member in (0, 1):
        assert sum(t.work_ms[member] + t.wait_ms[member] for t in found) == 25


def test_a_disturbed_step_does_not_count() -> None:
    million = 1_000_000
    runs = [_run(million)] * 4 + [_run(100 * million)]
    assert stages.breakdown(runs, [True, True, False], 1) == stages.breakdown(
        runs[:1], [True, True, False], 1
    )


def test_a_real_step_is_accounted_for(tmp_path: Path) -> None:
    bench = StepBench(rows=(1, 3), tokens=6, waves=2)
    with Engine(tiny_k3(tmp_path), max_model_len=16, threads=2) as engine:
        native = engine.parts.fused.native  # type: ignore[union-attr]
        times = [t for rows in bench.rows for t in stages.stage_times(engine, bench, rows)]
        with pytest.raises(ValueError, match="the trace is off"):
            native.trace()
        for rows in bench.rows:
            own = [t for t in times if t.rows == rows]
            assert sum(t.stages for t in own) == len(native.stages())
            assert sum(t.barriers for t in own) == native.barriers
            whole = [sum(t.work_ms[m] + t.wait_ms[m] for t in own) for m in (0, 1)]
            np.testing.assert_allclose(*whole)
        assert min(w for t in times for w in (*t.work_ms, *t.wait_ms)) >= 0
        plain = Engine.of(replace(engine.parts, fused=None, unsupported=("no reason",)))
        with pytest.raises(stages.UnsupportedError, match="no reason"):
            stages.stage_times(plain, bench, 1)
    console = Console(width=140)
    with console.capture() as capture:
        console.print(stage_table(times))
    text = capture.get()
    assert "kda.heads" in text
    assert "3 rows" in text
