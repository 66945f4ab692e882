"""The decode step as a user meets it: time between steps at a fixed number of requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, quantiles

import numpy as np

from stepfuse.bench.machine import Reading, median_reading, this_machine
from stepfuse.core.errors import RequestError, UnsupportedError
from stepfuse.engine.engine import Engine
from stepfuse.engine.request import SamplingParams
from stepfuse.runtime.plan import DecodeBackend

# What a member spends before its first stage: it is woken, the first one is already at work.
WAKE = "wake"


@dataclass(frozen=True, slots=True)
class StepBench:
    """What to measure. Per run, row count and backend: `waves` waves of exactly `rows` requests
    with prompts of one token and `tokens` tokens of output each, greedy, eos ignored.
    """

    rows: tuple[int, ...] = (1, 2, 4, 8)
    backends: tuple[DecodeBackend, ...] = ("standard", "latency_specialized")
    tokens: int = 32
    runs: int = 3
    waves: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What the bench asks of its surroundings: the memory measured now, and the bytes of a step.

    `bytes_per_step(rows, context)`: read once plus written, with `context` tokens cached per row;
    `routing` says where the number of distinct experts comes from.
    """

    read: Callable[[], Reading]
    bytes_per_step: Callable[[int, int], int]
    routing: str


@dataclass(frozen=True, slots=True)
class StageTime:
    """All stages of one kind (`kda.heads`, `moe.up`, ...) in a step of `rows` rows.

    `work_ms` and `wait_ms`: per member, in its own share of the stages and at the barriers behind
    them. All kinds of one member add up to the step. `barriers` end that many of the `stages`.
    """

    rows: int
    kind: str
    stages: int
    barriers: int
    work_ms: tuple[float, ...]
    wait_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepFigure:
    """One line of the table. Times in ms; `native_ms_median` None where the path has no clock.

    `step_ms_runs`: the median of each run, whose range is the spread. `roof_fraction`:
    bytes_per_step / read_gbps / step time. `stages`: the specialized step's parts where traced.
    """

    backend: str
    rows: int
    step_ms_median: float
    step_ms_p90: float
    step_ms_runs: tuple[float, ...]
    native_ms_median: float | None
    bytes_per_step: int
    routing: str
    read_gbps: float
    ping_pong_ns: float | None
    roof_fraction: float
    steps: int
    runs: int
    prompts_per_run: int
    input_tokens: int
    output_tokens: int
    threads: int
    level: str
    weights: str
    kv_cache_dtype: str
    model: str
    commit: str
    machine: dict[str, object]
    stages: tuple[StageTime, ...] = ()


@dataclass(slots=True)
class Times:
    """Nanoseconds of the steps of one backend and row count, run by run."""

    wall: list[list[int]]
    native: list[int]


Progress = Callable[[str], None]


def bench_step(
    engine: Engine, bench: StepBench, probe: Probe, progress: Progress = lambda _: None
) -> list[StepFigure]:
    """Measure all row counts and backends, backends interleaved within each run.

    `progress` hears of each group of waves before it runs (`group_count` in all). Raises
    UnsupportedError when the specialized path is asked for and cannot serve, RequestError when the
    engine does not hold that many requests or tokens.
    """
    check_bench(engine, bench)
    served = {b: Engine.of(replace(engine.parts, backend=b)) for b in bench.backends}
    times = {(b, r): Times([], []) for b in bench.backends for r in bench.rows}
    readings = []
    for backend in bench.backends:
        progress(f"{backend}: warm-up")
        decode_wave(
            served[backend], max(bench.rows), min(bench.tokens, 4), np.random.default_rng(0)
        )
    for run in range(bench.runs):
        readings.append(probe.read())
        for rows in bench.rows:
            for backend in bench.backends:
                progress(f"run {run + 1}: {backend}, {rows} rows")
                _measure(served[backend], bench, rows, times[backend, rows])
        readings.append(probe.read())
    reading = median_reading(readings)
    return [_figure(engine, bench, probe, (key, value, reading)) for key, value in times.items()]


def group_count(bench: StepBench) -> int:
    """How many times `progress` is called."""
    return len(bench.backends) * (1 + bench.runs * len(bench.rows))


def check_bench(engine: Engine, bench: StepBench) -> None:
    parts = engine.parts
    if "latency_specialized" in bench.backends and not parts.prepared_rows:
        raise UnsupportedError("latency_specialized cannot serve here", list(parts.unsupported))
    widest = max(bench.rows)
    if widest > parts.max_num_seqs:
        raise RequestError(f"rows {widest} exceed max_num_seqs={parts.max_num_seqs} of this engine")
    if "latency_specialized" in bench.backends and widest > parts.prepared_rows:
        raise RequestError(
            f"rows {widest} exceed the {parts.prepared_rows} rows the specialized path is prepared "
            "for: measure wider steps with --backend standard"
        )
    if bench.tokens < 3 or bench.tokens + 1 > parts.max_model_len:
        raise RequestError(
            f"tokens is {bench.tokens}: it must be from 3 to {parts.max_model_len - 1}"
        )


def _measure(engine: Engine, bench: StepBench, rows: int, times: Times) -> None:
    generator = np.random.default_rng(bench.seed)
    wall: list[int] = []
    for _ in range(bench.waves):
        for between, native in decode_wave(engine, rows, bench.tokens, generator):
            wall.append(between)
            if native:
                times.native.append(native)
    times.wall.append(wall)


def submit_wave(engine: Engine, rows: int, tokens: int, generator: np.random.Generator) -> None:
    """Queue `rows` requests of one random prompt token and `tokens` tokens of output."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for token in generator.integers(0, engine.parts.vocab, rows).tolist():
        engine.submit([token], params)


def decode_wave(
    engine: Engine, rows: int, tokens: int, generator: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """Per step with `rows` requests behind such a step: time between their ends, native time."""
    started = time.perf_counter_ns()
    submit_wave(engine, rows, tokens, generator)
    while engine.step():
        pass
    records = [r for r in engine.statistics.records if r.end_ns > started]
    wanted = [r.active == rows and not r.prefill for r in records]
    steps = zip(pairwise(records), pairwise(wanted), strict=True)
    return iter([(b.end_ns - a.end_ns, b.native_ns) for (a, b), good in steps if all(good)])


def _figure(
    engine: Engine,
    bench: StepBench,
    probe: Probe,
    measured: tuple[tuple[str, int], Times, Reading],
) -> StepFigure:
    (backend, rows), times, reading = measured
    facts, machine = engine.parts.facts, this_machine()
    wall = [ns for run in times.wall for ns in run]
    step_ms = median(wall) / 1e6
    size = probe.bytes_per_step(rows, bench.tokens // 2)
    return StepFigure(
        backend=backend,
        rows=rows,
        step_ms_median=step_ms,
        step_ms_p90=quantiles(wall, n=10, method="inclusive")[8] / 1e6,
        step_ms_runs=tuple(median(run) / 1e6 for run in times.wall),
        native_ms_median=median(times.native) / 1e6 if times.native else None,
        bytes_per_step=size,
        routing=probe.routing,
        read_gbps=reading.read_gbps,
        ping_pong_ns=reading.ping_pong_ns,
        roof_fraction=size / (reading.read_gbps * 1e9) / (step_ms / 1e3),
        steps=len(wall),
        runs=bench.runs,
        prompts_per_run=bench.waves,
        input_tokens=1,
        output_tokens=bench.tokens,
        threads=facts.threads,
        level=facts.level,
        weights=f"bf16, experts {engine.parts.geometry.moe.expert_format}",
        kv_cache_dtype=facts.kv_cache_dtype,
        model=facts.model,
        commit=machine.commit,
        machine=machine.as_dict(),
    )
