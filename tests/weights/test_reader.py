"""The reader agrees with the safetensors package; a damaged header is a typed error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepfuse.core.errors import CheckpointError, StepfuseError
from stepfuse.weights.load import LoadOptions, load
from stepfuse.weights.reader import open_checkpoint, read_header
from tests.support.files import header_of, write_raw
from tests.support.tiny import tiny_k3

TENSORS = {
    "bf16": torch.arange(24, dtype=torch.float32).reshape(4, 6).to(torch.bfloat16),
    "f32": torch.linspace(-1, 1, 7),
    "u8": torch.arange(12, dtype=torch.uint8).reshape(3, 4),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 5, dtype=torch.bfloat16),
    "four": torch.arange(16).reshape(1, 1, 16, 1),
}


def test_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    theirs = load_file(tmp_path / "model.safetensors")
    assert set(checkpoint.entries) == set(theirs)
    for name, want in theirs.items():
        got = checkpoint.tensor(name)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert torch.equal(got, want)


def test_data_at_an_odd_byte(tmp_path: Path) -> None:
    """A header of odd length is legal, and word-wise packing must not trip over it."""
    header = header_of(x=("BF16", [2, 2], [0, 8]))
    header += b" " * (1 - len(header) % 2)
    data = TENSORS["bf16"].reshape(-1)[4:8].view(torch.uint8).numpy().tobytes()
    write_raw(tmp_path / "model.safetensors", header, data)
    got = open_checkpoint(tmp_path).tensor("x")
    assert got.data_ptr() % 4 == 0
    assert got.tolist() == [[4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize("multiple", [1, 3, 16, 32])
def test_row_blocks_cover_a_tensor_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multiple: int
) -> None:
    monkeypatch.setattr("stepfuse.weights.reader._BLOCK_BYTES", 64 << 10)
    rows = torch.arange(1000 * 512, dtype=torch.int32).reshape(1000, 512)
    save_file({"x": rows}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    reached = 0
    for first, block in checkpoint.row_blocks("x", multiple):
        assert first == reached
        assert first % multiple == 0
        assert torch.equal(block, rows[first : first + len(block)])
        reached += len(block)
    assert reached == 1000
    # Pages that were given back come again from the file.
    assert torch.equal(checkpoint.tensor("x"), rows)
    checkpoint.drop("x")
    assert torch.equal(checkpoint.tensor("x"), rows)


def test_reading_never_changes_the_file(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(8)}, tmp_path / "model.safetensors")
    open_checkpoint(tmp_path).tensor("x").fill_(7)
    assert load_file(tmp_path / "model.safetensors")["x"].sum() == 0


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    import json

    for name in ("a", "b"):
        write_raw(tmp_path / f"{name}.safetensors", header_of(x=("U8", [1], [0, 1])), b"\0")
    weight_map = {"x": "a.safetensors", "y": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="two shards"):
        open_checkpoint(tmp_path)


def test_damaged_headers_are_refused_or_harmless(tmp_path: Path) -> None:
    """Bytes of a real header changed at random: a StepfuseError, or a checkpoint that loads."""
    path = tiny_k3(tmp_path, layers=2, experts=2, top_k=1)
    file = path / "model.safetensors"
    good = file.read_bytes()
    length = 8 + int.from_bytes(good[:8], "little")
    chance = random.Random(11)
    refused = 0
    for _ in range(80):
        bad = bytearray(good)
        for _ in range(chance.choice((1, 1, 3))):
            bad[chance.randrange(length)] = chance.choice(b'0123456789[]{},":-eU' + bytes(range(8)))
        file.write_bytes(bad)
        try:
            load(path, LoadOptions(quiet=True))
        except StepfuseError:
            refused += 1
    assert refused > 55


def test_header_order_is_the_order_of_the_data(tmp_path: Path) -> None:
    header = header_of(b=("U8", [2], [4, 6]), a=("U8", [4], [0, 4]))
    write_raw(tmp_path / "x.safetensors", header, b"\0" * 6)
    assert [e.name for e in read_header(tmp_path / "x.safetensors")] == ["a", "b"]
