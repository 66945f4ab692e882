"""Pictures are written, whatever was measured; without the library the remedy is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepfuse.bench.peers import PeerFigure
from stepfuse.bench.plot import PlotError, plot_peers, plot_steps, require_plot
from stepfuse.bench.plot_stages import GROUPS, group_of
from stepfuse.bench.step import StageTime, StepFigure

MACHINE: dict[str, object] = {"cpu": "a processor", "cores": 2, "commit": "abc"}
PNG = b"\x89PNG"


def _steps(backends: tuple[str, ...], rows: tuple[int, ...]) -> list[StepFigure]:
    values = {
        "step_ms_p90": 2.0, "native_ms_median": None, "bytes_per_step": 10**7, "routing": "",
        "read_gbps": 20.0, "ping_pong_ns": None, "roof_fraction": 0.5, "steps": 1, "runs": 2,
        "prompts_per_run": 1, "input_tokens": 1, "output_tokens": 4, "threads": 2, "level": "avx2",
        "weights": "bf16", "kv_cache_dtype": "bf16", "model": "m", "commit": "abc",
        "machine": MACHINE,
    }  # fmt: skip
    return [
        StepFigure(b, r, step_ms_median=1.0 * r, step_ms_runs=(0.9 * r, 1.2 * r), **values)  # type: ignore[arg-type]
        for b in backends
        for r in rows
    ]


def _peer(peer: str, kind: str, rows: int) -> PeerFigure:
    values = {
        "peer_ms": 3.0 * rows, "ours_ms": 1.0 * rows, "ratio": 3.0, "ttft_ms": None,
        "peer_ms_runs": (2.5 * rows, 3.5 * rows), "ours_ms_runs": (1.0 * rows, 1.1 * rows),
        "bytes_per_step": 10**7 if kind == "decode" else None, "read_gbps": 20.0,
        "ping_pong_ns": 50.0, "waiting_cpu": 0.0, "path": "latency_specialized", "threads": 2,
        "level": "avx2", "kv_cache_dtype": "bf16", "steps": 4, "runs": 2, "commit": "abc",
        "machine": MACHINE,
    }  # fmt: skip
    return PeerFigure(peer, "m", kind, rows, **values)  # type: ignore[arg-type]


STAGES = [
    StageTime(rows, kind, 2, 1, (0.3, 0.2), (0.1, 0.2))
    for rows in (1, 8)
    for kind in ("wake", "embed", "kda.heads", "moe.up", "something.new")
]


@pytest.mark.parametrize("backends", [("standard",), ("standard", "latency_specialized")])
@pytest.mark.parametrize("rows", [(1,), (1, 2, 4, 8)])
def test_steps(backends: tuple[str, ...], rows: tuple[int, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "steps.png"
    plot_steps(_steps(backends, rows), STAGES if len(backends) > 1 else [], out)
    assert out.read_bytes().startswith(PNG)


def test_peers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "peers.png"
    cases = [("decode", 1), ("decode", 8), ("verify", 8), ("prefill", 512)]
    figures = [_peer(peer, *case) for peer in ("llama.cpp", "pytorch") for case in cases]
    plot_peers(figures, STAGES, out)
    assert out.read_bytes().startswith(PNG)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install 'stepfuse\[plot\]'"):
        require_plot()


def test_every_stage_has_a_group() -> None:
    names = {kind: GROUPS[group_of(kind)][0] for kind in ("kda.heads", "moe.front", "mla.o", "new")}
    assert names == {
        "kda.heads": "KDA state",
        "moe.front": "router, latent, shared up",
        "mla.o": "MLA",
        "new": "other",
    }
