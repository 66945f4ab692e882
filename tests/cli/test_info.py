from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import Result, run_cli
from tests.support.tiny import tiny_k3

Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return lambda *arguments: run_cli(monkeypatch, capsys, *arguments)


def test_info_says_what_fits_and_whether_it_can_be_specialized(cli: Cli, tmp_path: Path) -> None:
    folder = tiny_k3(tmp_path)
    text = cli("info", str(folder)).out
    for label in (
        "Kimi-K3",
        "attention KDA",
        "state per sequence",
        "ISA level",
        "specialized path",
    ):
        assert label in text
    data = json.loads(cli("info", str(folder), "--json").out)
    assert data["geometry"]["hidden"] == 64
    assert data["weight_bytes"] == sum(data["weights"].values())
    assert data["specialized"] == (data["unsupported"] == [])


def test_info_accepts_keys_only_when_told(cli: Cli, tmp_path: Path) -> None:
    folder = tiny_k3(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "new_gate_power": 3}))
    refused = cli("info", str(folder))
    assert (refused.code, "new_gate_power" in refused.err) == (2, True)
    assert cli("info", str(folder), "--allow-config-keys", "new_gate_power").code == 0


def test_synth_refuses_an_unknown_preset(cli: Cli, tmp_path: Path) -> None:
    result = cli("synth", "k9", str(tmp_path / "out"))
    assert result.code == 2
    assert "k3-quarter" in result.err
