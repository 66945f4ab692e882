from __future__ import annotations

import json
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
