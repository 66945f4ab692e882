from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepfuse.bench.machine import Reading
from stepfuse.bench.step import Probe
from tests.support.cli import run_cli
from tests.support.fake_runtime import fake_parts


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfuse.engine.engine.build", lambda _: fake_parts())
    probe = Probe(lambda: Reading(10.0, 50.0), lambda rows, _: 1000 * rows, "a fake")
    monkeypatch.setattr("stepfuse.bench.probe.probe_of", lambda *_: probe)


def test_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "figures.json"
    result = run_cli(
        *(monkeypatch, capsys, "bench", "step", "fake", "--rows", "1,2", "--tokens", "4"),
        *("--runs", "1", "--json", str(out)),
    )
    assert result.code == 0, result.err
    assert "speed-up" in result.out
    figures = json.loads(out.read_text())
    assert [(f["backend"], f["rows"]) for f in figures] == [
        (backend, rows) for backend in ("standard", "latency_specialized") for rows in (1, 2)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "0"), "--rows '0'"),
        (("--rows", "a,b"), "--rows 'a,b'"),
        (("--backend", "fast"), "--backend 'fast'"),
        (("--rows", "99"), "rows 99 exceed max_num_seqs=8"),
        (("--backend", ""), "--backend ''"),
    ],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = run_cli(monkeypatch, capsys, "bench", "step", "fake", *arguments)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--peer", "vllm"), "--peer 'vllm': give some of llama.cpp, pytorch"),
        (("--kinds", "train"), "--kinds 'train': give some of decode, verify, prefill"),
        (("--prompts", "0"), "--prompts '0'"),
        (("--python", "/nowhere"), "build the peers first (make peers)"),
    ],
)
def test_peers_refuses(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("stepfuse.engine.location.resolve_model", Path)
    result = run_cli(monkeypatch, capsys, "bench", "peers", "fake", *arguments)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("command", ["step", "peers"])
def test_a_picture_without_its_library_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run_cli(monkeypatch, capsys, "bench", command, "fake", "--plot", "a.png")
    assert result.code == 2
    assert "stepfuse[plot]" in result.err
