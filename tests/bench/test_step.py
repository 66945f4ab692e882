"""The step bench over a fake runtime whose steps take a known time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from stepfuse import Engine
from stepfuse.bench.machine import Reading, median_reading, this_machine
from stepfuse.bench.step import Probe, StepBench, bench_step, group_count
from stepfuse.bench.table import step_table
from stepfuse.core.errors import RequestError, UnsupportedError
from stepfuse.runtime.batch import StepInput, StepOutput
from tests.support.fake_runtime import FakePool, FakeRuntime, fake_parts

SMALL = StepBench(rows=(1, 2), tokens=6, runs=2, waves=2)


class Slow(FakeRuntime):
    """Sleeps `ms` per step, and says so on its own clock."""

    ms = 0.0

    def run(self, step: StepInput) -> StepOutput:
        time.sleep(self.ms / 1e3)
        output = super().run(step)
        return StepOutput(output.logits, int(self.ms * 1e6))


def engine_of(**changes: object) -> Engine:
    pool = FakePool()
    standard, fused = Slow(pool), Slow(pool)
    standard.ms, fused.ms = 3.0, 1.0
    parts = fake_parts(pool, standard=standard, fused=fused)
    return Engine.of(replace(parts, **changes))  # type: ignore[arg-type]


def probe() -> Probe:
    return Probe(lambda: Reading(10.0, 50.0), lambda rows, _: 1_000_000 * rows, "a fake")


def test_every_backend_and_row_count_is_measured() -> None:
    heard: list[str] = []
    figures = bench_step(engine_of(), SMALL, probe(), heard.append)
    assert len(heard) == group_count(SMALL)
    keys = [(f.backend, f.rows) for f in figures]
    assert keys == [(b, r) for b in SMALL.backends for r in SMALL.rows]
    for figure in figures:
        # A wave of 6 tokens has 6 decode steps, 5 of them behind another of the same width.
        assert figure.steps == 2 * 2 * 5
        least = 3.0 if figure.backend == "standard" else 1.0
        assert figure.step_ms_median >= least
        assert figure.step_ms_p90 >= figure.step_ms_median
        assert figure.native_ms_median == least
        assert figure.roof_fraction == pytest.approx(
            figure.bytes_per_step / 10e9 / (figure.step_ms_median / 1e3)
        )
        assert len(figure.step_ms_runs) == 2


def test_backends_really_differ_and_nothing_is_left() -> None:
    engine = engine_of()
    figures = bench_step(engine, SMALL, probe())
    by_key = {(f.backend, f.rows): f.step_ms_median for f in figures}
    assert by_key["standard", 1] > by_key["latency_specialized", 1]
    assert isinstance(engine.parts.pool, FakePool)
    assert engine.parts.pool.idle


def test_json_and_table_carry_the_labels() -> None:
    figures = bench_step(engine_of(), SMALL, probe())
    line = json.loads(json.dumps([asdict(f) for f in figures]))[0]
    promised = """backend rows step_ms_median step_ms_p90 native_ms_median bytes_per_step read_gbps
    roof_fraction threads level kv_cache_dtype model commit machine"""
    assert set(promised.split()) <= set(line)
    console = Console(width=160, record=True, file=None, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        console.print(step_table(figures))
    text = " ".join(capture.get().split())
    for label in (
        "speed-up",
        "% of roof",
        "threads",
        "read 10.0 GB/s",
        "ping-pong 50 ns",
        "commit",
    ):
        assert label in text


def test_one_backend_alone_has_no_speed_up() -> None:
    bench = StepBench(rows=(1,), backends=("standard",), tokens=4, runs=1, waves=1)
    with Console(width=160).capture() as _:
        table = step_table(bench_step(engine_of(), bench, probe()))
    assert table.row_count == 1


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no native core"):
        bench_step(
            engine_of(fused=None, prepared_rows=0, unsupported=("no native core",)), SMALL, probe()
        )
    with pytest.raises(RequestError, match="rows 9 exceed max_num_seqs=8"):
        bench_step(engine_of(), StepBench(rows=(9,)), probe())
    with pytest.raises(RequestError, match="rows 2 exceed the 1 rows"):
        bench_step(engine_of(prepared_rows=1), SMALL, probe())
    with pytest.raises(RequestError, match="tokens is 2"):
        bench_step(engine_of(), StepBench(tokens=2), probe())


def test_machine_facts() -> None:
    machine = this_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.commit
    middle = median_reading([Reading(10, None), Reading(30, 5.0), Reading(20, 7.0)])
    assert middle == Reading(20, 6.0)
    assert median_reading([Reading(1, None)]).ping_pong_ns is None
