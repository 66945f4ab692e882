"""Synthetic checkpoints: deterministic, in released form, refused where they would overwrite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from stepfuse.core.errors import RequestError
from stepfuse.core.parse_config import parse_config
from stepfuse.weights.presets import PRESETS, config_of
from stepfuse.weights.synth import SynthOptions, synth, tensor_plan
from tests.support.files import read_tensors
from tests.support.tiny import tiny_k3, tiny_kimi_linear

QUIET = SynthOptions(quiet=True)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = tiny_k3(tmp_path / "a", seed=7), tiny_k3(tmp_path / "b", seed=7)
    other = tiny_k3(tmp_path / "c", seed=8)
    file = "model.safetensors"
    assert (one / file).read_bytes() == (two / file).read_bytes()
    assert (one / file).read_bytes() != (other / file).read_bytes()


def test_a_tensor_does_not_depend_on_the_others(tmp_path: Path) -> None:
    few = read_tensors(tiny_k3(tmp_path / "a", experts=4))
    many = read_tensors(tiny_k3(tmp_path / "b", experts=8))
    shared = [name for name in few if few[name].shape == many[name].shape]
    assert len(shared) == len(few) - 2 * 4  # router weight and bias of four layers
    assert all(torch.equal(few[name], many[name]) for name in shared)


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="--overwrite"):
        synth("k3-flat", tmp_path, QUIET)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    synth("k3-flat", tmp_path, SynthOptions(quiet=True, overwrite=True))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "model.safetensors").stat().st_size < 26e6


def test_an_unknown_preset_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="k3-quarter"):
        synth("k4", tmp_path, QUIET)


def test_the_size_is_printed_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synth("k3-flat", tmp_path / "m", SynthOptions())
    assert "k3-flat: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("k3-quarter", 3.3), ("k3-slice", 7.6), ("linear-slim", 9.9), ("k3-flat", 0.0237),
     ("k3-cache", 0.0266)],
)  # fmt: skip
def test_preset_sizes(name: str, gigabytes: float) -> None:
    g = parse_config(config_of(PRESETS[name])).geometry
    total = sum(tensor.bytes for tensor in tensor_plan(g))
    assert total == pytest.approx(gigabytes * 1e9, rel=0.02)
    assert g.layer_kinds[-1] == "mla"
    assert g.dense_layers[0]


def test_released_dtypes_and_shapes(tmp_path: Path) -> None:
    """FP32 and padding as the two released files have them."""
    k3 = read_tensors(tiny_k3(tmp_path, kda_heads=3))
    layer = "language_model.model.layers.0.self_attn"
    assert k3[f"{layer}.A_log"].shape == (4,)
    assert k3[f"{layer}.A_log"][3] == 0
    for name in ("A_log", "dt_bias", "q_conv1d.weight", "o_norm.weight"):
        assert k3[f"{layer}.{name}"].dtype == torch.float32
    assert k3[f"{layer}.q_conv1d.weight"].shape == (96, 1, 4)
    linear = read_tensors(tiny_kimi_linear(tmp_path))
    layer = "model.layers.0.self_attn"
    assert linear[f"{layer}.A_log"].shape == (1, 1, 2, 1)
    assert linear[f"{layer}.o_norm.weight"].dtype == torch.bfloat16


def test_scales_keep_activations_near_one(tmp_path: Path) -> None:
    from stepfuse.ops.mxfp4 import decode_mxfp4

    tensors = read_tensors(tiny_k3(tmp_path, hidden=256, latent=128, width=128))
    layer = "language_model.model.layers.1"
    q = tensors[f"{layer}.self_attn.q_proj.weight"].float()
    assert q.std().item() == pytest.approx(1 / 16, rel=0.05)
    for name, want in (("w1", 1 / math.sqrt(128)), ("w2", 1 / math.sqrt(128))):
        base = f"{layer}.block_sparse_moe.experts.0.{name}.weight"
        weight = decode_mxfp4(tensors[f"{base}_packed"], tensors[f"{base}_scale"])
        assert weight.std().item() == pytest.approx(want, rel=0.15)
        assert weight.mean().abs().item() < 0.02 * want * 3


@pytest.mark.parametrize("member", ["k3", "kimi_linear"])
def test_decays_spread(tmp_path: Path, member: str) -> None:
    """Channels that keep their state for hundreds of tokens stand beside ones that drop it."""
    path = tiny_k3(tmp_path) if member == "k3" else tiny_kimi_linear(tmp_path)
    prefix = "language_model." if member == "k3" else ""
    tensors = read_tensors(path)
    stem = f"{prefix}model.layers.0.self_attn"
    heads = tensors[f"{stem}.dt_bias"].numel() // 32
    rate = tensors[f"{stem}.A_log"].reshape(-1)[:heads].exp().repeat_interleave(32)
    z = tensors[f"{stem}.dt_bias"]
    if member == "k3":
        log_decay = -5 * torch.sigmoid(rate * z)
    else:
        log_decay = -rate * torch.nn.functional.softplus(z)
    keep = log_decay.exp()
    assert keep.max() > 0.95
    assert keep.min() < 0.6
    assert torch.isfinite(keep).all()
