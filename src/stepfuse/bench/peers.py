"""Peers beside us in one run: the same checkpoint, the same machine, turns taken one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from stepfuse.bench.machine import Reading, median_reading, this_machine
from stepfuse.bench.peer_process import Kind, Peer
from stepfuse.bench.step import Probe
from stepfuse.bench.turns import TURNS, Turn
from stepfuse.engine.engine import Engine

# Threads of the side that has just finished fall asleep within this time.
TURN_SECONDS = 0.2
# Prompts per turn: one is long, and its first step is not special.
PROMPTS_PER_TURN = 1


@dataclass(frozen=True, slots=True)
class PeerBench:
    """Per run and side: `steps` decode and verify steps for each of `rows`, one prompt of each of
    `prompts` tokens; only the `kinds` named.
    """

    rows: tuple[int, ...] = (1, 2, 4, 8)
    prompts: tuple[int, ...] = (512,)
    kinds: tuple[Kind, ...] = ("decode",)
    steps: int = 24
    runs: int = 3
    seed: int = 0

    @property
    def cases(self) -> tuple[tuple[Kind, int], ...]:
        """(kind, rows or prompt tokens), in the order they are measured."""
        sizes = {kind: self.prompts if kind == "prefill" else self.rows for kind in self.kinds}
        return tuple((kind, size) for kind in self.kinds for size in sizes[kind])

    @property
    def longest(self) -> int:
        """Tokens of the longest text of either side, the next one included."""
        lengths = {"prefill": max(self.prompts, default=1), "decode": self.steps}
        lengths["verify"] = 1 + self.steps * max(self.rows)
        return max(lengths[kind] for kind in self.kinds) + 2


@dataclass(frozen=True, slots=True)
class PeerFigure:
    """`rows`: sequences (decode), rows of one sequence (verify) or prompt tokens (prefill).

    `ratio`: peer over ours, median of the runs' ratios; `*_ms_runs`: the median of each run. For
    prefill `ours_ms` is the time to first token, `ttft_ms`, and the peer's the time of its passes
    over the prompt. `path`: the runtime all our steps ran on. `bytes_per_step`: of a decode step,
    else None. `waiting_cpu`: share of a core the side that was not measured used, the larger of
    both sides.
    """

    peer: str
    model: str
    kind: Kind
    rows: int
    peer_ms: float
    ours_ms: float
    ratio: float
    ttft_ms: float | None
    peer_ms_runs: tuple[float, ...]
    ours_ms_runs: tuple[float, ...]
    bytes_per_step: int | None
    read_gbps: float
    ping_pong_ns: float | None
    waiting_cpu: float
    path: str
    threads: int
    level: str
    kv_cache_dtype: str
    steps: int
    runs: int
    commit: str
    machine: dict[str, object]


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of each side; `waiting_cpu` as in PeerFigure."""

    peer_ms: float
    ours: Turn
    waiting_cpu: float


def turn_count(bench: PeerBench) -> int:
    """How many times `bench_peers` calls `progress`."""
    return bench.runs * len(bench.cases)


def bench_peers(
    engine: Engine, bench: PeerBench, probe: Probe, peer: Peer, progress: Callable[[str], None]
) -> list[PeerFigure]:
    """Measure both sides in turns; one figure per case. The engine must be idle.

    Raises UnsupportedError where verify is asked for and the specialized path cannot serve.
    """
    pairs: dict[tuple[Kind, int], list[Pair]] = {case: [] for case in bench.cases}
    readings = []
    # A turn that does not count: both sides' first step pays for what is set up on demand.
    _turn(engine, bench, peer, bench.cases[0])
    for run in range(bench.runs):
        readings.append(probe.read())
        for case in bench.cases:
            progress(f"{peer.name}, run {run + 1}: {case[0]}, {case[1]}")
            pairs[case].append(_turn(engine, bench, peer, case))
        readings.append(probe.read())
    reading = median_reading(readings)
    label = (peer.name, reading)
    return [_figure(engine, bench, probe, label, (case, pairs[case])) for case in bench.cases]


def _turn(engine: Engine, bench: PeerBench, peer: Peer, case: tuple[Kind, int]) -> Pair:
    kind, rows = case
    steps = PROMPTS_PER_TURN if kind == "prefill" else bench.steps
    own, began = time.process_time(), time.perf_counter()
    theirs = median(peer.times_ms(kind, rows, steps))
    own_share = (time.process_time() - own) / (time.perf_counter() - began)
    time.sleep(TURN_SECONDS)
    generator = np.random.default_rng(bench.seed)
    cpu, began = peer.cpu_seconds(), time.perf_counter()
    ours = TURNS[kind](engine, rows, steps, generator)
    peer_share = (peer.cpu_seconds() - cpu) / (time.perf_counter() - began)
    time.sleep(TURN_SECONDS)
    return Pair(theirs, ours, max(own_share, peer_share))


def _figure(
    engine: Engine,
    bench: PeerBench,
    probe: Probe,
    label: tuple[str, Reading],
    measured: tuple[tuple[Kind, int], list[Pair]],
) -> PeerFigure:
    (peer, reading), ((kind, rows), pairs) = label, measured
    theirs = tuple(pair.peer_ms for pair in pairs)
    ours = tuple(median(pair.ours.ms) for pair in pairs)
    paths = {pair.ours.path for pair in pairs}
    facts, machine = engine.parts.facts, this_machine()
    return PeerFigure(
        peer=peer,
        model=facts.model,
        kind=kind,
        rows=rows,
        peer_ms=median(theirs),
        ours_ms=median(ours),
        ratio=median(t / o for t, o in zip(theirs, ours, strict=True)),
        ttft_ms=median(ours) if kind == "prefill" else None,
        peer_ms_runs=theirs,
        ours_ms_runs=ours,
        bytes_per_step=probe.bytes_per_step(rows, bench.steps // 2) if kind == "decode" else None,
        read_gbps=reading.read_gbps,
        ping_pong_ns=reading.ping_pong_ns,
        waiting_cpu=max(pair.waiting_cpu for pair in pairs),
        path=paths.pop() if len(paths) == 1 else "mixed",
        threads=facts.threads,
        level=facts.level,
        kv_cache_dtype=facts.kv_cache_dtype,
        steps=PROMPTS_PER_TURN if kind == "prefill" else bench.steps,
        runs=bench.runs,
        commit=machine.commit,
        machine=machine.as_dict(),
    )
