from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepfuse.chat.tokenizer import TiktokenTokenizer
from tests.support.cli import Result, run_cli
from tests.support.fake_runtime import fake_parts
from tests.support.ranks import write_tokenizer

Cli = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [
        {"kind": "source", "name": "a.py", "text": "the thing in the thing"},
        {"kind": "recall", "prompt": "recall: a?", "answer": " b\n", "gap_tokens": 0},
        {"kind": "sum", "prompt": "sum: 1 + 1 =", "answer": " 2\n", "gap_tokens": 0},
    ]
    path = tmp_path / "heldout.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(x) + "\n" for x in lines).encode()))
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    write_tokenizer(tmp_path)
    tokenizer = TiktokenTokenizer.load(tmp_path)
    monkeypatch.setattr("stepfuse.engine.engine.build", lambda _: fake_parts(tokenizer=tokenizer))
    return lambda *arguments: run_cli(monkeypatch, capsys, *arguments)


def test_perplexity(cli: Cli, file: Path) -> None:
    result = cli("eval", "perplexity", "fake", "--file", str(file), "--json")
    data = json.loads(result.out)
    assert data["tokens"] > 5
    assert data["steps"] == {"latency_specialized/decode": data["tokens"] + 1}
    text = cli("eval", "perplexity", "fake", "--file", str(file), "--window", "8").out
    assert "bits per byte" in text
    assert "kv_cache_dtype bf16" in text


def test_tasks(cli: Cli, file: Path) -> None:
    data = json.loads(cli("eval", "tasks", "fake", "--file", str(file), "--json").out)
    assert data["count"] == {"recall": 1, "sum": 1, "all": 2}
    assert data["share"]["all"] == 0
    text = cli("eval", "tasks", "fake", "--file", str(file), "--limit", "1").out
    assert "recall 0.0% (0/1), all 0.0% (0/1)" in text


def test_a_missing_file_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli("eval", "tasks", "fake", "--file", str(tmp_path / "none"))
    assert result.code == 2
    assert "not a held-out file" in result.err
