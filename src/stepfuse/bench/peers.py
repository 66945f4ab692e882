"""Peers beside us in one run: the same checkpoint, the same machine, turns taken step by step."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Literal

import numpy as np

from stepfuse.bench import peer_llama_cpp
from stepfuse.bench.machine import Reading, median_reading, this_machine
from stepfuse.bench.step import Probe, decode_wave
from stepfuse.core.errors import StepfuseError
from stepfuse.engine.engine import Engine
from stepfuse.engine.request import SamplingParams

Kind = Literal["decode", "prefill"]
# Threads of the side that has just finished fall asleep within this time.
TURN_SECONDS = 0.2


class PeerError(StepfuseError):
    """A peer that is not installed, or stopped answering."""


@dataclass(frozen=True, slots=True)
class PeerBench:
    """Per run: `steps` decode steps of each side per row count, one prompt of each length."""

    rows: tuple[int, ...] = (1, 2, 4, 8)
    prompts: tuple[int, ...] = ()
    steps: int = 24
    runs: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PeerFigure:
    """`rows`: active requests (decode) or prompt tokens (prefill). `ratio`: peer over ours.

    `*_ms_runs`: the median of each run, whose range is the spread.
    """

    peer: str
    model: str
    kind: Kind
    rows: int
    peer_ms: float
    ours_ms: float
    ratio: float
    peer_ms_runs: tuple[float, ...]
    ours_ms_runs: tuple[float, ...]
    read_gbps: float
    ping_pong_ns: float | None
    threads: int
    level: str
    kv_cache_dtype: str
    commit: str
    machine: dict[str, object]


class LlamaCpp:
    """llama.cpp in its own process and interpreter, answering one request at a time."""

    name = "llama.cpp"

    def __init__(self, python: Path, checkpoint: Path, work: Path, threads: int) -> None:
        if not python.exists():
            raise PeerError(f"{python} is not there: build the peers first (make peers)")
        self._python = python
        gguf = work / f"{checkpoint.resolve().name}.gguf"
        if not gguf.exists():
            work.mkdir(parents=True, exist_ok=True)
            self._convert(checkpoint, gguf)
        self._process = subprocess.Popen(
            [python, peer_llama_cpp.__file__, "serve", gguf, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _convert(self, checkpoint: Path, gguf: Path) -> None:
        sources = sorted(self._python.parents[1].glob("src/*/vendor/llama.cpp"))
        if not sources:
            raise PeerError(f"{self._python}: llama.cpp's converter is missing (make peers)")
        partial = gguf.with_suffix(".part")
        command: list[str | Path] = [self._python, peer_llama_cpp.__file__, "convert", checkpoint]
        command += [partial, "--source", sources[-1]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerError(f"llama.cpp cannot convert {checkpoint}: {done.stderr[-2000:]}")
        partial.rename(gguf)

    def times_ms(self, kind: Kind, rows: int, steps: int) -> list[float]:
        """Milliseconds of `steps` decode steps at `rows` sequences, or prompts of `rows` tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"kind": kind, "rows": rows, "steps": steps}) + "\n")
        self._process.stdin.flush()
        return [float(ms) for ms in self._answer()["ms"]]

    def _answer(self) -> dict[str, list[float]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"llama.cpp stopped with exit code {self._process.wait()}")
        answer: dict[str, list[float]] = json.loads(line)
        return answer

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()


def turn_count(bench: PeerBench) -> int:
    """How many times `bench_peers` calls `progress`."""
    return bench.runs * (len(bench.rows) + len(bench.prompts))


def bench_peers(
    engine: Engine, bench: PeerBench, probe: Probe, peer: LlamaCpp, progress: Callable[[str], None]
) -> list[PeerFigure]:
    """Measure both sides in turns; one figure per row count and prompt length."""
    cases: list[tuple[Kind, int]] = [("decode", r) for r in bench.rows]
    cases += [("prefill", n) for n in bench.prompts]
    times: dict[tuple[Kind, int], list[tuple[float, float]]] = {case: [] for case in cases}
    readings = []
    for case in cases[:1]:
        _turn(engine, bench, peer, case)
    for run in range(bench.runs):
        readings.append(probe.read())
        for case in cases:
            progress(f"run {run + 1}: {case[0]}, {case[1]}")
            times[case].append(_turn(engine, bench, peer, case))
        readings.append(probe.read())
    reading = median_reading(readings)
    return [_figure(engine, peer, case, (times[case], reading)) for case in cases]


def _turn(
    engine: Engine, bench: PeerBench, peer: LlamaCpp, case: tuple[Kind, int]
) -> tuple[float, float]:
    """Median milliseconds of (the peer, us) on one case."""
    kind, rows = case
    steps = bench.steps if kind == "decode" else 1
    theirs = median(peer.times_ms(kind, rows, steps))
    time.sleep(TURN_SECONDS)
    generator = np.random.default_rng(bench.seed)
    if kind == "decode":
        ours = median(ns for ns, _ in decode_wave(engine, rows, bench.steps, generator)) / 1e6
    else:
        ours = _prefill_ms(engine, rows, generator)
    time.sleep(TURN_SECONDS)
    return theirs, ours


def _prefill_ms(engine: Engine, tokens: int, generator: np.random.Generator) -> float:
    prompt = generator.integers(0, engine.parts.vocab, tokens).tolist()
    began = time.perf_counter_ns()
    engine.generate([prompt], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    return (time.perf_counter_ns() - began) / 1e6


def _figure(
    engine: Engine,
    peer: LlamaCpp,
    case: tuple[Kind, int],
    measured: tuple[list[tuple[float, float]], Reading],
) -> PeerFigure:
    (kind, rows), (turns, reading) = case, measured
    theirs, ours = zip(*turns, strict=True)
    facts, machine = engine.parts.facts, this_machine()
    return PeerFigure(
        peer=peer.name,
        model=facts.model,
        kind=kind,
        rows=rows,
        peer_ms=median(theirs),
        ours_ms=median(ours),
        ratio=median(t / o for t, o in turns),
        peer_ms_runs=theirs,
        ours_ms_runs=ours,
        read_gbps=reading.read_gbps,
        ping_pong_ns=reading.ping_pong_ns,
        threads=facts.threads,
        level=facts.level,
        kv_cache_dtype=facts.kv_cache_dtype,
        commit=machine.commit,
        machine=machine.as_dict(),
    )
