"""Loading: check everything, allocate once, then move the values into the arena field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CheckpointError
from stepfuse.core.parse_config import ParsedConfig, parse_config
from stepfuse.ops.packed import PackedExperts, PackedGateUp, PackedLinear, expert_layout
from stepfuse.weights.arena import allocate_arena, read_once
from stepfuse.weights.build import Field, assemble, field_view
from stepfuse.weights.check import expert_names, present_name, resolve_geometry
from stepfuse.weights.layout import Placement, arena_layout
from stepfuse.weights.memory import LOAD_MARGIN_BYTES, check_fits
from stepfuse.weights.names import FieldSpec
from stepfuse.weights.pack import Packer
from stepfuse.weights.prepared import (
    FILE_NAME,
    Header,
    Prepared,
    check_prepared,
    checkpoint_digest,
    layout_digest,
    map_prepared,
    new_header,
    write_prepared,
)
from stepfuse.weights.progress import Advance, byte_progress
from stepfuse.weights.reader import Checkpoint, open_checkpoint, read_config
from stepfuse.weights.store import ModelWeights

# Beyond this the disk or the memory is the limit.
_WORKERS_MAX = 16
_ROUNDED = " values changed"
_Task = tuple[int, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`allow_config_keys`: unknown keys to accept. Without a TTY it is always `quiet`. `prepared`:
    auto maps the checkpoint's prepared file where there is a valid one, off packs, require refuses
    to pack.
    """

    allow_config_keys: frozenset[str] = frozenset()
    quiet: bool = False
    prepared: Prepared = "auto"


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
    """Load a checkpoint directory into one arena, or map its prepared file.

    Peak memory is the arena plus a few blocks of one tensor. Raises ConfigError, CheckpointError
    (also for a stale prepared file that is required), or MemoryPlanError where the arena does not
    fit.
    """
    options = options or LoadOptions()
    parsed, checkpoint, geometry = open_model(path, options.allow_config_keys)
    placements = arena_layout(geometry)
    size = placements[-1].offset + placements[-1].bytes
    check_fits(size + LOAD_MARGIN_BYTES, f"the weights of {path}")
    found, notices = _prepared(path, options, (checkpoint, geometry))
    if found is not None:
        arena = map_prepared(path / FILE_NAME, found, options.quiet)
        return LoadedModel(
            geometry=geometry,
            weights=assemble(geometry, arena, placements),
            notices=parsed.notices + found.notices + notices,
            kv_cache_dtype=parsed.kv_cache_dtype,
        )
    arena = allocate_arena(size)
    packer = Packer(checkpoint)
    with byte_progress(f"loading {path.name}", size, options.quiet) as advance:
        _run(list(_tasks(geometry, packer, arena, placements)), advance)
    read_once(arena)
    return LoadedModel(
        geometry=geometry,
        weights=assemble(geometry, arena, placements),
        notices=parsed.notices + _rounding_notice(packer) + notices,
        kv_cache_dtype=parsed.kv_cache_dtype,
    )


def prepare(path: Path, options: LoadOptions, force: bool = False) -> Path:
    """Write the checkpoint's prepared file from its own tensors, and return where it is.

    CheckpointError where there is one already, unless `force`.
    """
    file = path / FILE_NAME
    if file.exists() and not force:
        raise CheckpointError(f"{file} is there already: --force replaces it, --check verifies it")
    loaded = load(path, replace(options, prepared="off"))
    _, checkpoint, geometry = open_model(path, options.allow_config_keys)
    rounded = tuple(n for n in loaded.notices if n.endswith(_ROUNDED))
    header = replace(expected_header(path, checkpoint, geometry), notices=rounded)
    write_prepared(file, loaded.weights.arena, header, options.quiet)
    return file


def expected_header(path: Path, checkpoint: Checkpoint, geometry: Geometry) -> Header:
    """What a valid prepared file of this checkpoint says; without checksums and notices."""
    placements = arena_layout(geometry)
    size = placements[-1].offset + placements[-1].bytes
    digests = checkpoint_digest(checkpoint, path), layout_digest(geometry, placements)
    return new_header(size, *digests, notices=())


def _prepared(
    path: Path, options: LoadOptions, model: tuple[Checkpoint, Geometry]
) -> tuple[Header | None, tuple[str, ...]]:
    """The header of the prepared file to map, or None; and what to say about it."""
    file = path / FILE_NAME
    if options.prepared == "off":
        return None, ()
    if not file.is_file():
        if options.prepared == "require":
            raise CheckpointError(f"{file} is not there: run `stepfuse prepare {path}`")
        return None, ()
    try:
        header = check_prepared(file, expected_header(path, *model))
        return header, (f"weights mapped from {file}",)
    except CheckpointError as error:
        if options.prepared == "require":
            raise
        return None, (f"packed the checkpoint instead: {error}",)


def _tasks(
    g: Geometry, packer: Packer, arena: Tensor, placements: Sequence[Placement]
) -> Iterator[_Task]:
    """The work in file order: one task per field, one per expert."""
    for placement in placements:
        field = field_view(g, arena, placement)
        if not isinstance(field, PackedExperts):
            yield placement.bytes, partial(_fill, packer, placement.spec, field)
            continue
        layout = expert_layout(field.format, field.in_features, field.width)
        move = packer.expert_mxfp4 if field.format == "mxfp4" else packer.expert_bf16
        for expert in range(field.experts):
            names = expert_names(placement.spec, expert)
            yield layout.bytes, partial(move, names, field.data[expert], layout)


def _run(tasks: Sequence[_Task], advance: Advance) -> None:
    """All tasks on a few threads; the first error cancels the rest and is raised.

    Each task runs on one thread: moving bytes gains nothing from PyTorch's own team, whose waiting
    threads would take the cores from ours.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(min(_WORKERS_MAX, threads))
    try:
        for size, done in [(size, pool.submit(task)) for size, task in tasks]:
            done.result()
            advance(size)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _fill(packer: Packer, spec: FieldSpec, field: Field) -> None:
    names = tuple(present_name(packer.checkpoint, name) for name in spec.names)
    match field:
        case PackedLinear():
            packer.linear(names[0], field.data.view(torch.int16))
        case PackedGateUp():
            packer.gate_up(names, field.data.view(torch.int16))
        case (w_uk, w_uv):
            packer.kv_b(names[0], w_uk.data.view(torch.int16), w_uv.data.view(torch.int16))
        case Tensor():
            _fill_tensor(packer, spec, names, field)


def _fill_tensor(packer: Packer, spec: FieldSpec, names: tuple[str, ...], out: Tensor) -> None:
    match spec.rule:
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


def _rounding_notice(packer: Packer) -> tuple[str, ...]:
    if not packer.rounded:
        return ()
    changed = sum(packer.rounded.values())
    return (f"{len(packer.rounded)} FP32 tensors were rounded to BF16; {changed}{_ROUNDED}",)
