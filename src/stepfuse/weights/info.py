"""`stepfuse info`: what a checkpoint is and what it will cost, before anything is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CheckpointError
from stepfuse.weights import memory
from stepfuse.weights.load import expected_header, open_model
from stepfuse.weights.prepared import FILE_NAME, Header, check_prepared
from stepfuse.weights.sizes import weight_bytes

_ROWS = (1, 2, 4, 8)
_CONTEXTS = (1024, 8192, 65536, 262144, 1048576)
_MEMBERS = {"k3": "Kimi-K3", "kimi_linear": "Kimi-Linear"}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Everything `info` prints; sizes in bytes.

    `step` by rows at no context: trunk, experts (expected), state. `fits`: sequences per context
    and KV dtype in the memory available now, empty where the system does not say how much that is.
    `prepared`: whether the prepared file is there and valid, as a phrase.
    """

    path: str
    geometry: Geometry
    notices: tuple[str, ...]
    tensors: int
    file_bytes: int
    weights: dict[str, int]
    state: int
    kv_1k: dict[str, int]
    step: dict[int, dict[str, int]]
    available: int | None
    fits: dict[int, dict[str, int]]
    prepared: str


def describe(path: Path, allow_keys: frozenset[str] = frozenset()) -> ModelInfo:
    """Read config and headers of a checkpoint directory. Raises ConfigError or CheckpointError."""
    parsed, checkpoint, g = open_model(path, allow_keys)
    free = memory.available_bytes()
    contexts = [c for c in _CONTEXTS if c <= g.max_positions]
    return ModelInfo(
        path=str(path),
        geometry=g,
        notices=parsed.notices,
        tensors=len(checkpoint.entries),
        file_bytes=sum(shard.stat().st_size for shard in checkpoint.shards),
        weights=weight_bytes(g),
        state=memory.state_bytes(g),
        kv_1k={dtype: 1024 * memory.kv_bytes_per_token(g, dtype) for dtype in ("bf16", "fp8")},
        step={rows: _step(g, rows) for rows in _ROWS},
        available=free,
        fits={} if free is None else {c: _fits(g, free, c) for c in contexts},
        prepared=_prepared(path, expected_header(path, checkpoint, g)),
    )


def _prepared(path: Path, wanted: Header) -> str:
    """Whether the checkpoint has a prepared file, and whether it would be used."""
    file = path / FILE_NAME
    if not file.is_file():
        return "none (stepfuse prepare writes one)"
    try:
        check_prepared(file, wanted)
    except CheckpointError as error:
        return f"not usable: {error}"
    return f"{file.name}, {_size(file.stat().st_size)}, valid"


def as_json(info: ModelInfo) -> dict[str, Any]:
    """`info --json`: the fields of ModelInfo, and the sum of the weights."""
    return {**dataclasses.asdict(info), "weight_bytes": sum(info.weights.values())}


def render(info: ModelInfo, level: str, reasons: list[str]) -> RenderableType:
    """Tables for a terminal. `level`: the ISA level chosen; `reasons`: why the specialized path
    cannot serve this model here (empty: it can).
    """
    serves = "yes" if not reasons else "no: " + "; ".join(reasons)
    tail = Table(show_header=False, box=None)
    tail.add_row("ISA level", level)
    tail.add_row("specialized path", serves)
    tail.add_row("prepared file", info.prepared)
    for notice in info.notices:
        tail.add_row("notice", notice)
    parts = [_shape_table(info), _weights_table(info), _cache_table(info), _step_table(info)]
    return Group(*parts, *([_fits_table(info)] if info.fits else []), tail)


def _step(g: Geometry, rows: int) -> dict[str, int]:
    step = memory.bytes_per_step(g, rows, None, 0, "bf16")
    return {
        "trunk": step.trunk,
        "experts": step.experts,
        "state": step.state,
        "total": step.total,
    }


def _fits(g: Geometry, free: int, context: int) -> dict[str, int]:
    return {dt: memory.sequences_that_fit(g, free, context, dt) for dt in ("bf16", "fp8")}


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def _shape_table(info: ModelInfo) -> Table:
    g = info.geometry
    gate = "full rank" if g.kda.gate_rank is None else f"rank {g.kda.gate_rank}"
    table = Table(title=f"{_MEMBERS[g.member]}: {info.path}", show_header=False)
    rows = (
        ("files", f"{_size(info.file_bytes)}, {info.tensors} tensors"),
        ("layers", f"{g.layers}: {len(g.kda_layers)} KDA, {len(g.mla_layers)} MLA"),
        ("hidden, vocabulary", f"{g.hidden}, {g.vocab}"),
        ("KDA", f"{g.kda.heads} heads × {g.kda.dim}, output gate {gate}"),
        ("MLA", f"{g.mla.heads} heads, latent {g.mla.kv_lora} + {g.mla.rope} cached"),
        ("dense MLP", f"{g.dense_width} in {g.dense_layers.count(True)} layers"),
        (
            "experts",
            f"{g.moe.experts} ({g.moe.top_k} chosen) of width {g.moe.expert_width} on "
            f"{g.moe.latent or g.hidden}, {g.moe.expert_format}; shared {g.moe.shared_width}",
        ),
        ("residuals", f"blocks of {g.attn_res_block}" if g.attn_res_block else "plain"),
        ("context", str(g.max_positions)),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _weights_table(info: ModelInfo) -> Table:
    total = sum(info.weights.values())
    table = Table("weights", "bytes", "share", title="Memory of the weights")
    for kind, size in sorted(info.weights.items(), key=lambda item: -item[1]):
        table.add_row(kind, _size(size), f"{100 * size / total:.1f} %")
    table.add_row("all", _size(total), "")
    return table


def _cache_table(info: ModelInfo) -> Table:
    table = Table("cache", "bytes", title="Caches")
    table.add_row("state per sequence", _size(info.state))
    for dtype, size in info.kv_1k.items():
        table.add_row(f"KV per 1k tokens, {dtype}", _size(size))
    return table


def _step_table(info: ModelInfo) -> Table:
    table = Table(
        *("rows", "trunk", "experts, expected", "state", "all"),
        title="Bytes touched per decode step, KV apart",
    )
    for rows, step in info.step.items():
        table.add_row(str(rows), *(_size(size) for size in step.values()))
    return table


def _fits_table(info: ModelInfo) -> Table:
    available = "" if info.available is None else _size(info.available)
    table = Table(
        "tokens each", "BF16 KV", "FP8 KV", title=f"Sequences that fit in {available} available"
    )
    for context, fits in info.fits.items():
        table.add_row(str(context), *(str(count) for count in fits.values()))
    return table
