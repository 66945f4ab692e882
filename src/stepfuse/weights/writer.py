"""safetensors files written tensor by tensor: the header first, from what is to come."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfuse.weights.reader import DTYPES

# Data begin at a multiple of this, so that every view of them is aligned.
_HEADER_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to be written; `dtype` in the format's words ("BF16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


# The bytes of a tensor in blocks, so that no whole tensor has to be held.
Produce = Callable[[TensorPlan], Iterable[bytes | memoryview]]


def write_checkpoint(
    out: Path, plan: Sequence[TensorPlan], produce: Produce, shard_bytes: int
) -> None:
    """Write all tensors of `plan`: one file, or shards of about `shard_bytes` and an index."""
    shards = _shards(plan, shard_bytes)
    if len(shards) == 1:
        _write_shard(out / "model.safetensors", shards[0], produce)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(out / name, shard, produce)
        weight_map.update((tensor.name, name) for tensor in shard)
    total = sum(tensor.bytes for tensor in plan)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _shards(plan: Sequence[TensorPlan], shard_bytes: int) -> list[list[TensorPlan]]:
    shards: list[list[TensorPlan]] = [[]]
    filled = 0
    for tensor in plan:
        if shards[-1] and filled + tensor.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.bytes
    return shards


def _write_shard(path: Path, plan: Sequence[TensorPlan], produce: Produce) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in plan:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.bytes],
        }
        offset += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in plan:
            for block in produce(tensor):
                file.write(block)
        if file.tell() != 8 + len(text) + offset:
            raise AssertionError(f"{path}: a tensor produced other bytes than its shape says")
