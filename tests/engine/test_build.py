"""From a checkpoint folder to a serving engine, and every refusal on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepfuse import Engine, SamplingParams, StepfuseError
from stepfuse.core.errors import (
    CheckpointError,
    ConfigError,
    MemoryPlanError,
    RequestError,
)
from tests.support.ranks import write_tokenizer
from tests.support.tiny import tiny_k3, tiny_kimi_linear

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_k3(tmp_path_factory.mktemp("k3"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_both_members_serve_token_ids(k3: Path, tmp_path: Path) -> None:
    for folder in (k3, tiny_kimi_linear(tmp_path)):
        with Engine(str(folder), max_model_len=128) as engine:
            outputs = engine.generate([[1, 2, 3], [4]], GREEDY)
            assert [len(o.token_ids) for o in outputs] == [5, 5]
            assert engine.score([1, 2, 3]).shape == (3, engine.parts.vocab)
            with pytest.raises(RequestError, match="token ids only"):
                engine.generate("text")


def test_a_path_object_and_fp8_and_standard(k3: Path) -> None:
    with Engine(k3, "standard", kv_cache_dtype="fp8", max_model_len=64) as engine:
        engine.generate([1, 2], GREEDY)
        assert set(engine.stats().steps) == {("standard", "backend_standard")}
        assert engine.parts.facts.kv_cache_dtype == "fp8"


def test_tokenizer_and_every_eos(tmp_path: Path) -> None:
    folder = tiny_k3(tmp_path, vocab=640)
    base = write_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    with Engine(str(folder), max_model_len=64) as engine:
        assert {7, 9, base + 1} <= engine.parts.eos_ids
        assert set(engine.parts.geometry.eos_ids) <= engine.parts.eos_ids
        (output,) = engine.generate("the thing", GREEDY)
        assert isinstance(output.text, str)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_k3(tmp_path, vocab=512)
    write_tokenizer(folder)
    with pytest.raises(CheckpointError, match="the tokenizer has 528 ids, the model 512"):
        Engine(str(folder))


@pytest.mark.parametrize("text", ["[", "[1]", '{"eos_token_id": "x"}', '{"eos_token_id": ["x"]}'])
def test_a_broken_generation_config_is_refused(tmp_path: Path, text: str) -> None:
    folder = tiny_k3(tmp_path)
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match="generation_config"):
        Engine(str(folder))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_backend": "fast"}, "decode_backend is 'fast'"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"prefill_chunk": -1}, "prefill_chunk is -1"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_model_len": 4097}, "max_model_len is 4097"),
    ],
)
def test_bad_options_are_refused(k3: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Engine(str(k3), **options)


def test_the_memory_plan_is_checked_before_loading(
    k3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("loaded before the plan was checked")

    monkeypatch.setattr("stepfuse.engine.build.load", never)
    with pytest.raises(MemoryPlanError, match="cache_bytes=1000 hold 0 pages"):
        Engine(str(k3), cache_bytes=1000)
    monkeypatch.setattr("stepfuse.weights.memory.available_bytes", lambda: 1000)
    with pytest.raises(MemoryPlanError, match="available"):
        Engine(str(k3))


def test_unknown_config_keys_are_refused_and_may_be_accepted(tmp_path: Path) -> None:
    folder = tiny_k3(tmp_path)
    change_config(folder, new_gate_power=3)
    with pytest.raises(ConfigError, match="new_gate_power"):
        Engine(str(folder))
    for keys in ("new_gate_power", ["new_gate_power"]):
        with Engine(folder, allow_config_keys=keys, max_model_len=64) as engine:
            engine.generate([1], GREEDY)


def test_every_refusal_is_one_family(k3: Path, tmp_path: Path) -> None:
    for arguments in ((str(tmp_path),), (str(tmp_path / "none"),), (str(k3), "fast")):
        with pytest.raises(StepfuseError):
            Engine(*arguments)  # type: ignore[arg-type]
