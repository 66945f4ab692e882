"""`info` speaks from config and headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from stepfuse.core.errors import CheckpointError
from stepfuse.weights.info import as_json, describe, render
from stepfuse.weights.layout import arena_bytes
from stepfuse.weights.reader import Checkpoint
from tests.support.tiny import tiny_k3, tiny_kimi_linear


def test_no_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("info read a weight")

    monkeypatch.setattr(Checkpoint, "tensor", refuse)
    info = describe(tiny_k3(tmp_path))
    assert sum(info.weights.values()) == arena_bytes(info.geometry)
    assert info.step[2]["total"] > info.step[1]["total"]


def test_rendering_names_what_matters(tmp_path: Path) -> None:
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    console.print(render(describe(tiny_k3(tmp_path)), "avx2", []))
    text = console.export_text()
    for word in ("Kimi-K3", "experts", "mxfp4", "KV per 1k tokens", "avx2", "yes", "MLA"):
        assert word in text
    reasons = ["heads: 3"]
    console.print(render(describe(tiny_kimi_linear(tmp_path)), "scalar", reasons))
    text = console.export_text()
    assert "Kimi-Linear" in text
    assert "no: heads: 3" in text


def test_json_is_json(tmp_path: Path) -> None:
    info = as_json(describe(tiny_k3(tmp_path)))
    again = json.loads(json.dumps(info))
    assert again["weight_bytes"] == sum(again["weights"].values())
    assert again["geometry"]["member"] == "k3"


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        describe(path)
