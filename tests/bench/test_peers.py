"""The bench beside peers: real small engines, a peer that answers at once, real peer processes."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from stepfuse import Engine
from stepfuse.bench.machine import Reading
from stepfuse.bench.peer_process import (
    Kind,
    PeerChoice,
    PeerError,
    PeerProcess,
    start_llama_cpp,
    start_pytorch,
)
from stepfuse.bench.peers import PeerBench, bench_peers, turn_count
from stepfuse.bench.step import Probe
from stepfuse.bench.table import peer_table
from stepfuse.bench.turns import decode_turn, prefill_turn, verify_turn
from stepfuse.core.errors import NativeError, RequestError, UnsupportedError
from tests.support.fake_runtime import FakePool, fake_parts
from tests.support.tiny import tiny_k3

BENCH = PeerBench(
    rows=(1, 3), prompts=(20,), kinds=("decode", "verify", "prefill"), steps=5, runs=2
)


class Instant:
    """Answers 100 ms per step and notes what it was asked."""

    name = "instant"

    def __init__(self) -> None:
        self.asked: list[tuple[Kind, int, int]] = []

    def times_ms(self, kind: Kind, rows: int, steps: int) -> list[float]:
        self.asked.append((kind, rows, steps))
        return [100.0] * steps

    def cpu_seconds(self) -> float:
        return 0.0


def probe() -> Probe:
    return Probe(lambda: Reading(10.0, 50.0), lambda rows, _: 1_000_000 * rows, "a fake")


def test_every_kind_is_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stepfuse._native")
    monkeypatch.setattr("stepfuse.bench.peers.TURN_SECONDS", 0.0)
    peer, heard = Instant(), []
    with Engine(tiny_k3(tmp_path), max_model_len=BENCH.longest, threads=2) as engine:
        before = (engine.parts.pool.free_pages, engine.parts.pool.free_slots)
        figures = bench_peers(engine, BENCH, probe(), peer, heard.append)
        assert (engine.parts.pool.free_pages, engine.parts.pool.free_slots) == before
    assert len(heard) == turn_count(BENCH) == 2 * 5
    cases = [("decode", 1, 5), ("decode", 3, 5), ("verify", 1, 5), ("verify", 3, 5)]
    assert peer.asked == [cases[0], *(2 * [*cases, ("prefill", 20, 1)])]
    assert [(f.kind, f.rows) for f in figures] == [*(c[:2] for c in cases), ("prefill", 20)]
    for figure in figures:
        prefill = figure.kind == "prefill"
        assert figure.path == ("standard" if prefill else "latency_specialized")
        assert figure.peer_ms == 100.0
        assert figure.ours_ms > 0
        assert min(figure.ours_ms_runs) <= 100.0 / figure.ratio <= max(figure.ours_ms_runs)
        assert figure.ttft_ms == (figure.ours_ms if prefill else None)
        assert figure.bytes_per_step == (
            1_000_000 * figure.rows if figure.kind == "decode" else None
        )
    line = json.loads(json.dumps([asdict(f) for f in figures]))[0]
    promised = "peer model kind rows peer_ms ours_ms ratio read_gbps ping_pong_ns"
    labels = "threads level kv_cache_dtype commit machine runs"
    assert set(f"{promised} {labels}".split()) <= set(line)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(peer_table(figures))
    assert "prefill (TTFT)" in capture.get()


def test_verify_gives_the_logits_of_single_steps(tmp_path: Path) -> None:
    """What is timed as a verify step is a right one: its rows are those of decode steps."""
    pytest.importorskip("stepfuse._native")
    from stepfuse.runtime.batch import SequenceRows, StepInput

    with Engine(tiny_k3(tmp_path), max_model_len=64, threads=2) as engine:
        runtime, pool = engine.parts.runtime("latency_specialized"), engine.parts.pool
        tokens = np.random.RandomState(0).randint(0, engine.parts.vocab, 5).astype(np.int32)
        pages = pool.take_pages(1)
        logits = []
        for widths in ((1, 1, 1, 1, 1), (1, 4)):
            slot, first, rows = pool.take_slot(), 0, []
            for width in widths:
                step = StepInput(
                    tokens[first : first + width], (SequenceRows(slot, width, first, pages, "all"),)
                )
                rows.append(runtime.run(step).logits.numpy().copy())
                first += width
            pool.give_slot(slot)
            logits.append(np.concatenate(rows))
        pool.give_pages(pages)
    np.testing.assert_array_equal(*logits)


def test_a_turn_says_which_path_ran(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    with Engine(tiny_k3(tmp_path), max_model_len=64, decode_backend="standard") as engine:
        assert decode_turn(engine, 2, 4, generator).path == "standard"
        assert len(prefill_turn(engine, 30, 2, generator).ms) == 2
        with pytest.raises(UnsupportedError, match="verify runs on the specialized path only"):
            verify_turn(engine, 2, 4, generator)


def test_verify_refuses_a_runtime_without_a_native_clock() -> None:
    engine = Engine.of(fake_parts(FakePool()))
    # The fake's clock says 1 us for a step of no work at all: longer than the call itself is fine,
    # none is not.
    engine.parts.fused.run = _no_clock(engine.parts.fused.run)  # type: ignore[union-attr,method-assign]
    with pytest.raises(NativeError, match="did not run on the specialized path"):
        verify_turn(engine, 2, 3, np.random.default_rng(0))
    assert isinstance(engine.parts.pool, FakePool)
    assert engine.parts.pool.idle
    with pytest.raises(RequestError, match="max_model_len"):
        verify_turn(engine, 8, 100, np.random.default_rng(0))


def _no_clock(run):  # type: ignore[no-untyped-def]
    def timeless(step):  # type: ignore[no-untyped-def]
        output = run(step)
        return type(output)(output.logits, 0)

    return timeless


def test_the_pytorch_process_answers_and_ends(tmp_path: Path) -> None:
    choice = PeerChoice(tiny_k3(tmp_path), 1, 64, Path("none"), tmp_path)
    with start_pytorch(choice) as peer:
        for kind in ("decode", "verify", "prefill"):
            times = peer.times_ms(kind, 3, 2)  # type: ignore[arg-type]
            assert len(times) == 2
            assert min(times) > 0
        assert peer.cpu_seconds() > 0


def test_a_peer_that_stops_is_named() -> None:
    silent = [sys.executable, "-c", "print('{\"ready\": true}'); exit(3)"]
    with (
        PeerProcess("silent", silent) as peer,
        pytest.raises(PeerError, match="silent stopped with exit code 3"),
    ):
        peer.times_ms("decode", 1, 1)
    with pytest.raises(PeerError, match="silent stopped"):
        PeerProcess("silent", [sys.executable, "-c", "exit(1)"])


def test_llama_cpp_that_is_not_built_is_refused(tmp_path: Path) -> None:
    choice = PeerChoice(tmp_path, 1, 64, tmp_path / "python", tmp_path)
    with pytest.raises(PeerError, match="make peers"):
        start_llama_cpp(choice)
