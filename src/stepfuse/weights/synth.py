"""Random checkpoints in released form, with scales that keep activations near 1.

Every tensor has its own generator, seeded by the checkpoint's seed and its name: its values depend
on nothing else. Values come from tables of Gaussian quantiles by raw random bits, several times
faster than drawing normals, and their exponents spread as a Gaussian's do.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from stepfuse.core.config import FP4_GROUP, Geometry
from stepfuse.core.errors import RequestError
from stepfuse.core.parse_config import parse_config
from stepfuse.ops.mxfp4 import E2M1_MAGNITUDES
from stepfuse.weights.check import expert_names
from stepfuse.weights.layout import all_fields
from stepfuse.weights.names import FieldSpec
from stepfuse.weights.presets import PRESETS, Shape, config_of
from stepfuse.weights.progress import byte_progress
from stepfuse.weights.writer import TensorPlan, write_checkpoint

_BLOCK = 1 << 22  # values drawn at once
_QUANTILES = 1 << 16
# Gaussian spread in units of an MXFP4 scale: the largest of 32 then lies near 5 of at most 6.
_FP4_SIGMA = 2.2
# Gains over 1/sqrt(fan in): the head spreads its logits, the router its scores. Larger outputs of
# attention and experts, or sharper residual mixes (gain 1), amplify rounding; with these, rounding
# every product's input to BF16 costs k3-flat about 1 % of its logits (median).
_GAINS = {
    "res_proj.weight": 0.5,
    "lm_head.weight": 2.0,
    "gate.weight": 1.5,
}


@dataclass(frozen=True, slots=True)
class SynthOptions:
    seed: int = 0
    overwrite: bool = False
    quiet: bool = False
    shard_bytes: int = 2_000_000_000


def synth(preset: str, out: Path, options: SynthOptions | None = None) -> None:
    """Write the checkpoint `preset` names into the directory `out`, after printing its size.

    Raises RequestError for an unknown preset, or where `out` holds files and `overwrite` is off.
    """
    if preset not in PRESETS:
        raise RequestError(f"no preset '{preset}': choose one of {', '.join(sorted(PRESETS))}")
    synth_shape(PRESETS[preset], out, options or SynthOptions(), title=preset)


def synth_shape(shape: Shape, out: Path, options: SynthOptions, title: str = "model") -> None:
    """As `synth`, for any shape."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not options.overwrite:
        raise RequestError(f"{out} is not empty: choose another directory or pass --overwrite")
    raw = config_of(shape)
    geometry = parse_config(raw).geometry
    plan = list(tensor_plan(geometry))
    total = sum(tensor.bytes for tensor in plan)
    if not options.quiet:
        Console(stderr=True).print(
            f"{title}: {len(plan)} tensors, {total / 1e9:.2f} GB in {out}", highlight=False
        )
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("model*.safetensors"), out / "model.safetensors.index.json"):
        old.unlink(missing_ok=True)
    (out / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    values = _Values(geometry, options.seed)
    with byte_progress(f"writing {title}", total, options.quiet) as advance:

        def produce(tensor: TensorPlan) -> Iterator[memoryview]:
            for block in values.blocks(tensor):
                yield block.data.cast("B")
                advance(block.nbytes)

        write_checkpoint(out, plan, produce, options.shard_bytes)


def tensor_plan(g: Geometry) -> Iterator[TensorPlan]:
    """The tensors of a released checkpoint of this shape, with its dtypes."""
    for spec in all_fields(g):
        if spec.rule == "experts":
            yield from _expert_plan(g, spec)
            continue
        for name in spec.names:
            yield TensorPlan(name, _dtype(g, name), _file_shape(g, spec))


def _dtype(g: Geometry, name: str) -> str:
    """K3 keeps conv weights, output norm and correction bias in FP32, Kimi-Linear in BF16."""
    if name.endswith(("A_log", "dt_bias")):
        return "F32"
    k3_only = ("conv1d.weight", "o_norm.weight", "e_score_correction_bias")
    return "F32" if g.member == "k3" and name.endswith(k3_only) else "BF16"


def _file_shape(g: Geometry, spec: FieldSpec) -> tuple[int, ...]:
    """K3 pads A_log to a power of two (128 for 96 heads), Kimi-Linear stores [1, 1, H, 1]."""
    if spec.rule != "a_log":
        return spec.shape
    heads = g.kda.heads
    return (1 << (heads - 1).bit_length(),) if g.member == "k3" else (1, 1, heads, 1)


def _expert_plan(g: Geometry, spec: FieldSpec) -> Iterator[TensorPlan]:
    width, inside = spec.shape
    shapes = ((width, inside), (inside, width), (width, inside))
    for expert in range(g.moe.experts):
        for name, (rows, cols) in zip(expert_names(spec, expert), shapes, strict=True):
            if g.moe.expert_format == "bf16":
                yield TensorPlan(name, "BF16", (rows, cols))
            else:
                yield TensorPlan(f"{name}_packed", "U8", (rows, cols // 2))
                yield TensorPlan(f"{name}_scale", "U8", (rows, cols // FP4_GROUP))


@dataclass(frozen=True, slots=True)
class _Values:
    geometry: Geometry
    seed: int

    def blocks(self, tensor: TensorPlan) -> Iterator[NDArray[np.generic]]:
        """The tensor's values in file order and dtype."""
        source = np.random.SFC64([self.seed, zlib.crc32(tensor.name.encode())])
        count = math.prod(tensor.shape)
        for begin in range(0, count, _BLOCK):
            bits = source.random_raw(-(-min(_BLOCK, count - begin) // 4)).view(np.uint16)
            block = self._draw(tensor, bits[: min(_BLOCK, count - begin)])
            yield np.ascontiguousarray(block)

    def _draw(self, tensor: TensorPlan, bits: NDArray[np.uint16]) -> NDArray[np.generic]:
        name = tensor.name
        if name.endswith("weight_packed"):
            return _nibble_table()[bits]
        if name.endswith("weight_scale"):
            return self._scales(tensor, bits)
        if name.endswith("A_log"):
            return self._a_log(bits)
        values = self._dt_bias(bits) if name.endswith("dt_bias") else _normal(bits)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif not name.endswith("dt_bias"):
            values = values * self._sigma(tensor)
        if tensor.dtype == "F32":
            return values.astype(np.float32)
        rounded = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy()

    def _sigma(self, tensor: TensorPlan) -> float:
        name, fan_in = tensor.name, tensor.shape[-1]
        if name.endswith("e_score_correction_bias"):
            return 0.02
        if name.endswith("embed_tokens.weight"):
            return 1.0
        if name.endswith("f_b_proj.weight"):
            # exp(A_log) multiplies it by up to 16.
            return 0.15 / math.sqrt(fan_in)
        gain = next((g for end, g in _GAINS.items() if name.endswith(end)), 1.0)
        return gain / math.sqrt(fan_in)

    def _scales(self, tensor: TensorPlan, bits: NDArray[np.uint16]) -> NDArray[np.uint8]:
        """Two neighbouring powers of two, mixed so that their mean is the spread wanted."""
        fan_in = tensor.shape[-1] * FP4_GROUP
        wanted = 1 / math.sqrt(fan_in) / _FP4_SIGMA
        low = math.floor(math.log2(wanted))
        upper = int((wanted / 2.0**low - 1) * _QUANTILES)
        return (low + 127 + (bits < upper)).astype(np.uint8)

    def _a_log(self, bits: NDArray[np.uint16]) -> NDArray[np.float32]:
        """log U(1, 16) per head, zero behind the heads."""
        values = np.log(1 + 15 * (bits + 0.5) / _QUANTILES)
        values[self.geometry.kda.heads :] = 0
        return values.astype(np.float32)

    def _dt_bias(self, bits: NDArray[np.uint16]) -> NDArray[np.float64]:
        """Decays spread from almost none to almost all of the state per token, in either form."""
        uniform = (bits + 0.5) / _QUANTILES
        if self.geometry.kda.gate_lower_bound is not None:
            return np.asarray(-1.2 * uniform)
        step = np.exp(math.log(1e-3) + uniform * math.log(100))
        return np.asarray(step + np.log(-np.expm1(-step)))  # softplus of it is `step`


def _normal(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return _normal_table()[bits]


@cache
def _normal_table() -> NDArray[np.float32]:
    """Standard normal quantiles at the centres of 65536 equal shares."""
    share = (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES
    table: NDArray[np.float32] = torch.special.ndtri(share).float().numpy()
    return table


@cache
def _nibble_table() -> NDArray[np.uint8]:
    """65536 bytes: two E2M1 codes, each a quantile of a Gaussian at 8 random bits."""
    share = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    value = torch.special.ndtri(share) * _FP4_SIGMA
    distance = (value.abs()[:, None] - torch.tensor(E2M1_MAGNITUDES, dtype=torch.float64)).abs()
    codes = distance.argmin(1) + 8 * (value < 0)
    table: NDArray[np.uint8] = (codes[None, :] | (codes[:, None] << 4)).to(torch.uint8).numpy()
    return table.reshape(-1)
