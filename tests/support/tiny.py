"""Tiny random checkpoints in released form, written in well under a second."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from stepfuse.weights.presets import Shape
from stepfuse.weights.synth import SynthOptions, synth_shape

TINY_K3 = Shape(
    member="k3",
    hidden=64,
    layers=5,
    vocab=512,
    kda_heads=3,
    mla_heads=3,
    dense=96,
    experts=8,
    top_k=3,
    width=32,
    latent=32,
    q_lora=48,
    kda_dim=32,
    kv_lora=32,
    nope=32,
    rope=16,
    v_dim=32,
    shared=2,
    block=2,
    expert_format="mxfp4",
    max_positions=4096,
)
TINY_KIMI_LINEAR = Shape(
    member="kimi_linear",
    hidden=64,
    layers=5,
    vocab=512,
    kda_heads=2,
    mla_heads=2,
    dense=96,
    experts=8,
    top_k=3,
    width=48,
    kda_dim=32,
    kv_lora=32,
    nope=32,
    rope=16,
    v_dim=32,
    routed_scaling=2.446,
    max_positions=4096,
)


def tiny_k3(path: Path, seed: int = 0, **overrides: Any) -> Path:
    """A K3 of 5 layers (MLA at 3 and 4, layer 0 dense); `overrides` are fields of Shape."""
    return _write(TINY_K3, path / "tiny-k3", seed, overrides)


def tiny_kimi_linear(path: Path, seed: int = 0, **overrides: Any) -> Path:
    """A Kimi-Linear of 5 layers (MLA at 3 and 4, layer 0 dense); `overrides` as above."""
    return _write(TINY_KIMI_LINEAR, path / "tiny-kimi-linear", seed, overrides)


def _write(shape: Shape, out: Path, seed: int, overrides: dict[str, Any]) -> Path:
    options = SynthOptions(seed=seed, quiet=True, overwrite=True)
    synth_shape(dataclasses.replace(shape, **overrides), out, options)
    return out
