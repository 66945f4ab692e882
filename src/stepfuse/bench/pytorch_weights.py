"""A checkpoint as plain PyTorch holds it: row-major BF16, products of one input stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, Geometry
from stepfuse.ops.mxfp4 import decode_mxfp4
from stepfuse.weights.check import expert_names, present_name
from stepfuse.weights.load import open_model
from stepfuse.weights.names import FieldSpec, layer_fields, model_fields
from stepfuse.weights.reader import Checkpoint

ExpertForm = Literal["bf16", "stored"]
# Fields that multiply the same input: one matrix each, one call instead of up to six.
_ATTENTION_IN = ("q", "k", "v", "q_a", "kv_a", "g", "g_a", "f_a", "b")
_FFN_IN = ("latent_down", "shared_gate_up")


@dataclass(frozen=True, slots=True)
class Stack:
    """Products of one input: `weight` BF16 [sum of sizes, in], its parts by name."""

    weight: Tensor
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """x BF16 [R, in] to BF16 [R, size] of each part."""
        parts = F.linear(x, self.weight).split_with_sizes(self.sizes, dim=-1)
        return dict(zip(self.names, parts, strict=True))


@dataclass(frozen=True, slots=True)
class Experts:
    """BF16 `gate_up` [E, 2 * width, in] and `down` [E, in, width]; or, with `scales` of both, the
    files' MXFP4 bytes, decoded whenever an expert is used.
    """

    gate_up: Tensor
    down: Tensor
    scales: tuple[Tensor, Tensor] | None

    def of(self, expert: int) -> tuple[Tensor, Tensor]:
        """BF16 gate_up and down of one expert."""
        if self.scales is None:
            return self.gate_up[expert], self.down[expert]
        gate_up = decode_mxfp4(self.gate_up[expert], self.scales[0][expert])
        down = decode_mxfp4(self.down[expert], self.scales[1][expert])
        return gate_up.bfloat16(), down.bfloat16()


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """`fields`: BF16 matrices [out, in] and FP32 vectors by name; a dense layer has no experts."""

    fields: dict[str, Tensor]
    attention_in: Stack
    ffn_in: Stack | None
    experts: Experts | None


@dataclass(frozen=True, slots=True)
class PlainModel:
    """`outer`: the fields outside the layers."""

    geometry: Geometry
    outer: dict[str, Tensor]
    layers: tuple[PlainLayer, ...]


def load_plain(
    path: Path, form: ExpertForm = "bf16", allow: frozenset[str] = frozenset()
) -> PlainModel:
    """Read a checkpoint directory. `form`: MXFP4 experts decoded once here, or kept as stored,
    which takes a quarter of the memory and 4 to 6 times as long per decode step (k3-quarter).

    Raises ConfigError or CheckpointError.
    """
    _, files, g = open_model(path, allow)
    layers = tuple(_layer(g, files, index, form) for index in range(g.layers))
    return PlainModel(g, {s.field: _field(files, s) for s in model_fields(g)}, layers)


def read_once(model: PlainModel) -> None:
    """Read every weight: under some hypervisors the first read of written memory is many times
    slower than the next, and no side's steps shall pay for that.
    """
    tensors = list(model.outer.values())
    for layer in model.layers:
        tensors += [*layer.fields.values(), layer.attention_in.weight]
        if layer.ffn_in is not None and layer.experts is not None:
            tensors += [layer.ffn_in.weight, layer.experts.gate_up, layer.experts.down]
    for tensor in tensors:
        tensor.view(torch.uint8).max()


def _layer(g: Geometry, files: Checkpoint, index: int, form: ExpertForm) -> PlainLayer:
    experts, fields = None, {}
    for spec in layer_fields(g, index):
        if spec.rule == "experts":
            experts = _experts(g, files, spec, form)
        else:
            fields[spec.field] = _field(files, spec)
    if "attention.a_log" in fields:
        fields["attention.a_log"] = fields["attention.a_log"][: g.kda.heads].clone()
    names = _ATTENTION_IN if g.mla.q_lora is not None else (*_ATTENTION_IN, "q_b")
    attention_in = _stack(fields, "attention", names)
    ffn_in = _stack(fields, "ffn", _FFN_IN) if experts is not None else None
    return PlainLayer(fields, attention_in, ffn_in, experts)


def _stack(fields: dict[str, Tensor], part: str, names: Sequence[str]) -> Stack:
    """Move the fields of `names` that are there into one matrix."""
    present = tuple(n for n in names if f"{part}.{n}" in fields)
    taken = [fields.pop(f"{part}.{n}") for n in present]
    return Stack(torch.cat(taken), present, tuple(len(t) for t in taken))


def _field(files: Checkpoint, spec: FieldSpec) -> Tensor:
    names = [present_name(files, name) for name in spec.names]
    found = [files.tensor(name) for name in names]
    if spec.rule == "conv":
        # [4 taps, q k v side by side]
        field = torch.cat([t.reshape(len(t), -1) for t in found]).t().float().contiguous()
    elif spec.rule in ("vector", "float", "a_log"):
        field = found[0].reshape(-1).float().clone()
    elif spec.field == "ffn.router":
        field = found[0].float()
    else:
        field = torch.cat([t.bfloat16() for t in found])
    for name in names:
        files.drop(name)
    return field


def _experts(g: Geometry, files: Checkpoint, spec: FieldSpec, form: ExpertForm) -> Experts:
    count, (width, inside) = g.moe.experts, spec.shape
    packed = g.moe.expert_format == "mxfp4"
    if packed and form == "stored":
        return _stored_experts(files, spec, count)
    gate_up = torch.empty((count, 2 * width, inside), dtype=torch.bfloat16)
    down = torch.empty((count, inside, width), dtype=torch.bfloat16)
    for expert in range(count):
        w1, w2, w3 = expert_names(spec, expert)
        targets = ((w1, gate_up[expert, :width]), (w3, gate_up[expert, width:]), (w2, down[expert]))
        for name, out in targets:
            out.copy_(_decoded(files, name) if packed else files.tensor(name))
    return Experts(gate_up, down, None)


def _decoded(files: Checkpoint, name: str) -> Tensor:
    return decode_mxfp4(files.tensor(f"{name}_packed"), files.tensor(f"{name}_scale"))


def _stored_experts(files: Checkpoint, spec: FieldSpec, count: int) -> Experts:
    """Nibbles and scales of every expert, w1 above w3."""
    width, inside = spec.shape
    nibbles = torch.empty((count, 2 * width, inside // 2), dtype=torch.uint8)
    scales = torch.empty((count, 2 * width, inside // FP4_GROUP), dtype=torch.uint8)
    down = torch.empty((count, inside, width // 2), dtype=torch.uint8)
    down_scales = torch.empty((count, inside, width // FP4_GROUP), dtype=torch.uint8)
    for expert in range(count):
        w1, w2, w3 = expert_names(spec, expert)
        for half, name in enumerate((w1, w3)):
            rows = slice(half * width, (half + 1) * width)
            nibbles[expert, rows] = files.tensor(f"{name}_packed")
            scales[expert, rows] = files.tensor(f"{name}_scale")
        down[expert] = files.tensor(f"{w2}_packed")
        down_scales[expert] = files.tensor(f"{w2}_scale")
    return Experts(nibbles, down, (scales, down_scales))
