from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import stepfuse
from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.engine.parts import EngineOptions, Parts
from tests.support.cli import Result, run_cli
from tests.support.fake_runtime import FakePool, FakeRuntime, expected_greedy, fake_parts
from tests.support.ranks import write_tokenizer

Cli = Callable[..., Result]


@pytest.fixture
def options() -> list[EngineOptions]:
    return []


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[EngineOptions],
    tmp_path: Path,
) -> Cli:
    """The command over fake parts; a model named `text` has a tokenizer."""
    write_tokenizer(tmp_path)

    def build(asked: EngineOptions) -> Parts:
        options.append(asked)
        tokenizer = TiktokenTokenizer.load(tmp_path) if asked.model_path == "text" else None
        changes: dict[str, object] = {}
        if asked.model_path == "slow":
            changes = {"fused": None, "prepared_rows": 0, "unsupported": ("no native core",)}
        if asked.model_path == "broken":
            pool = FakePool()
            broken = FakeRuntime(pool)
            broken.nan_token = 3
            changes = {"pool": pool, "standard": broken, "fused": broken}
        return fake_parts(tokenizer=tokenizer, **changes)

    monkeypatch.setattr("stepfuse.engine.engine.build", build)
    return lambda *arguments: run_cli(monkeypatch, capsys, *arguments)


def test_token_ids_in_and_out_with_figures(cli: Cli) -> None:
    result = cli("generate", "ids", "--token-ids", "5,6 7", "--max-tokens", "4")
    assert result.code == 0
    assert [int(i) for i in result.out.split()] == expected_greedy([5, 6, 7], 4)
    assert "latency_specialized/decode 3" in result.err
    assert "standard/prefill 1" in result.err
    for label in ("decode step", "tok/s", "TTFT", "3 + 4 tokens", "1 threads"):
        assert label in result.err


def test_text_streams_behind_its_prompt(cli: Cli, tmp_path: Path) -> None:
    arguments = ("--max-tokens", "6", "--temperature", "0.8", "--seed", "3")
    one = cli("generate", "text", "--prompt", "the thing", *arguments)
    assert one.code == 0
    assert one.out.startswith("the thing")
    (tmp_path / "prompt.txt").write_text("the thing", encoding="utf-8")
    two = cli("generate", "text", "--prompt-file", str(tmp_path / "prompt.txt"), *arguments)
    assert two.out == one.out


def test_several_prompts(cli: Cli) -> None:
    result = cli("generate", "ids", "--token-ids", "1", "--token-ids", "2", "--max-tokens", "3")
    lines = result.out.splitlines()
    assert [lines[0][:12], lines[2][:12]] == ["--- prompt 1", "--- prompt 2"]
    assert [int(i) for i in lines[3].split()] == expected_greedy([2], 3)


def test_json(cli: Cli) -> None:
    result = cli("generate", "ids", "--token-ids", "1", "--max-tokens", "3", "--json")
    data = json.loads(result.out)
    assert data["outputs"][0]["token_ids"] == expected_greedy([1], 3)
    assert data["figures"]["steps"] == {"latency_specialized/decode": 3}


def test_options_reach_the_engine(cli: Cli, options: list[EngineOptions]) -> None:
    cli(
        *("generate", "m", "--token-ids", "1", "--max-tokens", "1", "--decode-backend", "standard"),
        *("--kv-cache-dtype", "fp8", "--threads", "3", "--max-model-len", "99"),
        *("--allow-config-keys", "a,b", "--allow-config-keys", "c"),
    )
    (asked,) = options
    assert (asked.model_path, asked.decode_backend, asked.kv_cache_dtype) == (
        "m",
        "standard",
        "fp8",
    )
    assert (asked.threads, asked.max_model_len) == (3, 99)
    assert asked.allow_config_keys == ("a", "b", "c")


def test_silently_slow_cannot_happen(cli: Cli) -> None:
    result = cli("generate", "slow", "--token-ids", "1", "--max-tokens", "2")
    assert "standard/unsupported 2" in result.err
    assert "no specialized path: no native core" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no prompt"),
        (("--prompt", "hello"), "takes token ids only"),
        (("--token-ids", "1,x"), "give integers"),
        (("--token-ids", "9999"), "outside the model's vocabulary"),
        (("--token-ids", "1", "--max-tokens", "0"), "max_tokens is 0"),
        (("--token-ids", "1", "--temperature", "-1"), "temperature is -1.0"),
        (("--prompt-file", "/nowhere"), "--prompt-file /nowhere"),
    ],
)
def test_a_refusal_is_one_line_and_code_2(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("generate", "ids", *arguments)
    assert result.code == 2
    assert result.err.startswith("stepfuse: ")
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_failed_request_is_code_2(cli: Cli) -> None:
    result = cli("generate", "broken", "--token-ids", "3")
    assert result.code == 2
    assert "not finite" in result.err


def test_a_missing_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_cli(monkeypatch, capsys, "generate", "/nowhere", "--prompt", "x")
    assert result.code == 2
    assert "/nowhere is not a folder" in result.err


def test_version_and_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, capsys, "--version").out == f"stepfuse {stepfuse.__version__}\n"
    text = run_cli(monkeypatch, capsys, "--help").out
    assert all(name in text for name in ("generate", "info", "synth", "bench", "eval"))
