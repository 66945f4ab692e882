"""The loader's fields against a packing of the same file that shares no code with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepfuse.weights.load import LoadOptions, load
from tests.support.files import read_tensors
from tests.support.pack_weights import pack_model
from tests.support.tiny import tiny_k3, tiny_kimi_linear


def compare(got: object, want: object, where: str) -> int:
    """Fields compared; recurses through dataclasses and tuples."""
    if isinstance(got, Tensor):
        assert isinstance(want, Tensor)
        assert torch.equal(got, want.to(got.dtype).reshape(got.shape)), where
        return 1
    if isinstance(got, tuple):
        assert isinstance(want, tuple)
        assert len(got) == len(want)
        return sum(
            compare(g, w, f"{where}[{i}]") for i, (g, w) in enumerate(zip(got, want, strict=True))
        )
    slots = getattr(type(got), "__slots__", None)
    if slots is None or isinstance(got, str):
        assert got == want, where
        return 0
    names = [name for name in slots if name != "arena"]
    return sum(compare(getattr(got, n), getattr(want, n), f"{where}.{n}") for n in names)


@pytest.mark.parametrize("member", ["k3", "kimi_linear", "k3_bf16"])
def test_same_fields(tmp_path: Path, member: str) -> None:
    match member:
        case "k3":
            path = tiny_k3(tmp_path, kda_heads=4)
        case "k3_bf16":
            path = tiny_k3(tmp_path, kda_heads=4, expert_format="bf16", width=48)
        case _:
            path = tiny_kimi_linear(tmp_path)
    model = load(path, LoadOptions(quiet=True))
    prefix = model.geometry.tensor_prefix
    tensors = {name.removeprefix(prefix): t for name, t in read_tensors(path).items()}
    packed = pack_model(model.geometry, tensors)
    assert compare(model.weights, packed, "weights") > 50
