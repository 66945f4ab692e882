"""The prepared file gives the arena the checkpoint gives, or says why it cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stepfuse.core.errors import CheckpointError, MemoryPlanError
from stepfuse.weights import prepared
from stepfuse.weights.info import describe
from stepfuse.weights.load import LoadOptions, expected_header, load, open_model, prepare
from stepfuse.weights.synth import SynthOptions, synth

QUIET = LoadOptions(quiet=True)
REQUIRE = LoadOptions(quiet=True, prepared="require")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "model"
    synth("k3-cache", folder, SynthOptions(seed=3))
    prepare(folder, QUIET)
    return folder


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def test_mapped_weights_are_the_packed_ones(made: Path) -> None:
    packed = load(made, LoadOptions(quiet=True, prepared="off"))
    mapped = load(made, REQUIRE)
    assert torch.equal(packed.weights.arena, mapped.weights.arena)
    assert torch.equal(packed.weights.lm_head.data, mapped.weights.lm_head.data)
    assert any("mapped from" in notice for notice in mapped.notices)
    assert not any("mapped from" in notice for notice in packed.notices)
    assert "valid" in describe(made).prepared


def test_a_copy_of_the_checkpoint_is_the_same_one(model: Path) -> None:
    assert any("mapped from" in notice for notice in load(model, REQUIRE).notices)


def corrupt(file: Path, at: int) -> None:
    with file.open("r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)
        raw.seek(at)
        raw.write(bytes([byte[0] ^ 0xFF]))


@pytest.mark.parametrize("what", ["weights", "config", "header", "truncated", "version", "foreign"])
def test_a_stale_or_damaged_file_is_refused_or_skipped_aloud(model: Path, what: str) -> None:
    file = model / prepared.FILE_NAME
    shard = next(model.glob("*.safetensors"))
    match what:
        case "weights":
            corrupt(shard, shard.stat().st_size // 2)
        case "config":
            config = model / "config.json"
            config.write_text(config.read_text() + " ")
        case "header":
            corrupt(file, 80)
        case "truncated":
            with file.open("r+b") as raw:
                raw.truncate(file.stat().st_size - 1)
        case "version":
            corrupt(file, 8)
        case "foreign":
            file.write_bytes(b"not a prepared file")
    with pytest.raises(CheckpointError, match="stepfuse prepare"):
        load(model, REQUIRE)
    skipped = load(model, QUIET)
    assert any(n.startswith("packed the checkpoint instead") for n in skipped.notices)
    assert "not usable" in describe(model).prepared


def test_a_missing_file_is_no_notice_unless_required(model: Path) -> None:
    (model / prepared.FILE_NAME).unlink()
    assert (
        load(model, QUIET).notices == load(model, LoadOptions(quiet=True, prepared="off")).notices
    )
    with pytest.raises(CheckpointError, match="is not there"):
        load(model, REQUIRE)
    assert "none" in describe(model).prepared


def test_the_body_is_checked_block_by_block(model: Path) -> None:
    file = model / prepared.FILE_NAME
    _, checkpoint, geometry = open_model(model, frozenset())
    header = prepared.check_prepared(file, expected_header(model, checkpoint, geometry))
    prepared.check_body(file, header, quiet=True)
    corrupt(file, prepared.BODY_OFFSET + header.arena_bytes - 1)
    with pytest.raises(CheckpointError, match="block 0 of 1"):
        prepared.check_body(file, header, quiet=True)


def test_what_is_there_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = model / prepared.FILE_NAME
    with pytest.raises(CheckpointError, match="--force"):
        prepare(model, QUIET)
    usage = shutil.disk_usage(model)._replace(free=1000)
    monkeypatch.setattr(prepared.shutil, "disk_usage", lambda _: usage)
    before = file.read_bytes()
    with pytest.raises(MemoryPlanError, match="make room"):
        prepare(model, QUIET, force=True)
    assert file.read_bytes() == before
    assert not list(model.glob("*.part"))
