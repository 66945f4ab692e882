"""A checkpoint's tensors against the table: all that is missing or wrong, before allocation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepfuse.core.config import FP4_GROUP, Geometry
from stepfuse.core.errors import CheckpointError
from stepfuse.core.parse_config import check_geometry
from stepfuse.weights.layout import all_fields
from stepfuse.weights.names import ALIASES, FieldSpec
from stepfuse.weights.reader import Checkpoint, TensorEntry

# Buffers some exporters leave in; attention without rotation has no use for them.
_SKIPPED_SUFFIX = "rotary_emb.inv_freq"
_UNPACKED = ("BF16", "F32")
_LISTED_MAX = 8


def resolve_geometry(checkpoint: Checkpoint, geometry: Geometry) -> Geometry:
    """`geometry` with the expert format the files hold, after checking every tensor.

    Raises CheckpointError listing missing and unexpected tensors, and each shape or dtype that
    contradicts the config, with what was expected and found.
    """
    resolved = _with_expert_format(checkpoint, geometry)
    check_geometry(resolved)
    expected = {
        tensor.name: tensor
        for spec in all_fields(resolved)
        for tensor in _expected_tensors(resolved, checkpoint, spec)
    }
    found = checkpoint.entries
    missing = [name for name in expected if name not in found]
    wrong = [t.mismatch(found[t.name]) for t in expected.values() if not t.matches(found)]
    strange = [
        name
        for name in found
        if name.startswith(geometry.tensor_prefix)
        and name not in expected
        and not name.endswith(_SKIPPED_SUFFIX)
    ]
    _raise(checkpoint, "lacks tensors the config calls for", missing)
    _raise(checkpoint, "has tensors that contradict the config", wrong)
    _raise(checkpoint, "has tensors this version does not know, so it cannot be run", strange)
    return resolved


def _with_expert_format(checkpoint: Checkpoint, g: Geometry) -> Geometry:
    packed = any(
        name.endswith(".weight_packed") and name.startswith(g.tensor_prefix)
        for name in checkpoint.entries
    )
    moe = dataclasses.replace(g.moe, expert_format="mxfp4" if packed else "bf16")
    return dataclasses.replace(g, moe=moe)


def present_name(checkpoint: Checkpoint, name: str) -> str:
    """The name under which the files hold a tensor: the released one, or transformers' alias."""
    if name in checkpoint:
        return name
    parts = name.split(".")
    suffix = ".".join(parts[-3:])
    if suffix in ALIASES:
        return ".".join((*parts[:-3], ALIASES[suffix]))
    return name


def expert_names(spec: FieldSpec, expert: int) -> tuple[str, str, str]:
    """w1, w2, w3 of an expert up to `.weight`."""
    stem = f"{spec.names[0]}{expert}."
    return f"{stem}w1.weight", f"{stem}w2.weight", f"{stem}w3.weight"


@dataclass(frozen=True, slots=True)
class _Expected:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def matches(self, found: Mapping[str, TensorEntry]) -> bool:
        """True also where there is no such tensor: that is another complaint."""
        entry = found.get(self.name)
        return entry is None or (entry.shape in self.shapes and entry.dtype in self.dtypes)

    def mismatch(self, entry: TensorEntry) -> str:
        wanted = " or ".join(str(list(shape)) for shape in self.shapes)
        return (
            f"'{entry.name}' is {entry.dtype} {list(entry.shape)}, expected "
            f"{' or '.join(self.dtypes)} {wanted}"
        )


def _expected_tensors(g: Geometry, checkpoint: Checkpoint, spec: FieldSpec) -> Iterator[_Expected]:
    if spec.rule == "experts":
        for expert in range(g.moe.experts):
            yield from _expected_expert(g, spec, expert)
        return
    for full in spec.names:
        name = present_name(checkpoint, full)
        shapes: tuple[tuple[int, ...], ...] = (spec.shape,)
        if spec.rule == "conv":
            shapes = (spec.shape, (spec.shape[0], spec.shape[2]))
        elif spec.rule == "a_log":
            shapes = _a_log_shapes(checkpoint.entries.get(name), spec.shape[0])
        yield _Expected(name, shapes, _UNPACKED)


def _a_log_shapes(entry: TensorEntry | None, heads: int) -> tuple[tuple[int, ...], ...]:
    """The tail of a longer 1-D tensor is looked at when it is loaded."""
    shapes: tuple[tuple[int, ...], ...] = ((heads,), (1, 1, heads, 1))
    if entry is not None and len(entry.shape) == 1 and entry.shape[0] > heads:
        shapes += (entry.shape,)
    return shapes


def _expected_expert(g: Geometry, spec: FieldSpec, expert: int) -> Iterator[_Expected]:
    width, inside = spec.shape
    for name, (rows, cols) in zip(
        expert_names(spec, expert),
        ((width, inside), (inside, width), (width, inside)),
        strict=True,
    ):
        if g.moe.expert_format == "bf16":
            yield _Expected(name, ((rows, cols),), _UNPACKED)
        else:
            yield _Expected(f"{name}_packed", ((rows, cols // 2),), ("U8",))
            yield _Expected(f"{name}_scale", ((rows, cols // FP4_GROUP),), ("U8",))


def _raise(checkpoint: Checkpoint, what: str, names: list[str]) -> None:
    if names:
        listed = "; ".join(names[:_LISTED_MAX])
        more = f"; and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
        raise CheckpointError(f"{checkpoint.shards[0].parent} {what}: {listed}{more}")
