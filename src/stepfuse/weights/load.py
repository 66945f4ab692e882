"""Loading: check everything, allocate once, then move the values into the arena field by field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.parse_config import ParsedConfig, parse_config
from stepfuse.ops.packed import PackedExperts, PackedGateUp, PackedLinear, expert_layout
from stepfuse.weights.arena import allocate_arena, read_once
from stepfuse.weights.build import assemble, field_view
from stepfuse.weights.check import expert_names, present_name, resolve_geometry
from stepfuse.weights.layout import Placement, arena_layout
from stepfuse.weights.memory import LOAD_MARGIN_BYTES, check_fits
from stepfuse.weights.pack import Packer
from stepfuse.weights.progress import Advance, byte_progress
from stepfuse.weights.reader import Checkpoint, open_checkpoint, read_config
from stepfuse.weights.store import ModelWeights


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`allow_config_keys`: unknown keys to accept. Without a TTY it is always `quiet`."""

    allow_config_keys: frozenset[str] = frozenset()
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`notices`: what was accepted or rounded, one line each; `kv_cache_dtype`: the files' wish."""

    geometry: Geometry
    weights: ModelWeights
    notices: tuple[str, ...]
    kv_cache_dtype: Literal["fp8"] | None


def open_model(path: Path, allow_keys: frozenset[str]) -> tuple[ParsedConfig, Checkpoint, Geometry]:
    """Config, files and the resolved geometry of a checkpoint directory; no weight is read.

    Raises ConfigError or CheckpointError.
    """
    parsed = parse_config(read_config(path), allow_keys)
    checkpoint = open_checkpoint(path)
    return parsed, checkpoint, resolve_geometry(checkpoint, parsed.geometry)


def load(path: Path, options: LoadOptions | None = None) -> LoadedModel:
    """Load a checkpoint directory into one arena.

    Peak memory is the arena plus a few blocks of one tensor. Raises ConfigError, CheckpointError,
    or MemoryPlanError where the arena does not fit.
    """
    options = options or LoadOptions()
    parsed, checkpoint, geometry = open_model(path, options.allow_config_keys)
    placements = arena_layout(geometry)
    size = placements[-1].offset + placements[-1].bytes
    check_fits(size + LOAD_MARGIN_BYTES, f"the weights of {path}")
    arena = allocate_arena(size)
    packer = Packer(checkpoint)
    with byte_progress(f"loading {path.name}", size, options.quiet) as advance:
        for placement in placements:
            _fill(geometry, packer, arena, placement, advance)
    read_once(arena)
    return LoadedModel(
        geometry=geometry,
        weights=assemble(geometry, arena, placements),
        notices=parsed.notices + _rounding_notice(packer),
        kv_cache_dtype=parsed.kv_cache_dtype,
    )


def _fill(
    g: Geometry, packer: Packer, arena: Tensor, placement: Placement, advance: Advance
) -> None:
    spec = placement.spec
    field = field_view(g, arena, placement)
    names = tuple(present_name(packer.checkpoint, name) for name in spec.names)
    match field:
        case PackedLinear():
            packer.linear(names[0], field.data.view(torch.int16))
        case PackedGateUp():
            packer.gate_up(names, field.data.view(torch.int16))
        case PackedExperts():
            _fill_experts(packer, placement, field, advance)
            return
        case (w_uk, w_uv):
            packer.kv_b(names[0], w_uk.data.view(torch.int16), w_uv.data.view(torch.int16))
        case Tensor():
            _fill_tensor(packer, placement, names, field)
    advance(placement.bytes)


def _fill_tensor(packer: Packer, placement: Placement, names: tuple[str, ...], out: Tensor) -> None:
    match placement.spec.rule:
        case "plain":
            packer.plain(names[0], out)
        case "conv":
            packer.conv(names, out)
        case "a_log":
            packer.a_log(names[0], out)
        case "float":
            packer.floats(names[0], out)
        case _:
            packer.vector(names[0], out)


def _fill_experts(
    packer: Packer, placement: Placement, experts: PackedExperts, advance: Advance
) -> None:
    layout = expert_layout(experts.format, experts.in_features, experts.width)
    move = packer.expert_mxfp4 if experts.format == "mxfp4" else packer.expert_bf16
    for expert in range(experts.experts):
        move(expert_names(placement.spec, expert), experts.data[expert], layout)
        advance(layout.bytes)


def _rounding_notice(packer: Packer) -> tuple[str, ...]:
    if not packer.rounded:
        return ()
    changed = sum(packer.rounded.values())
    return (f"{len(packer.rounded)} FP32 tensors were rounded to BF16; {changed} values changed",)
