"""safetensors files read lazily over mmap; a header is believed only after it has been checked.

Format: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}},
then the data the offsets point into. Nothing is allocated by what a header claims: the sizes must
agree with the file's own size first.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
from torch import Tensor

from stepfuse.core.errors import CheckpointError, ConfigError

DTYPES: Final[dict[str, tuple[torch.dtype, int]]] = {
    "BF16": (torch.bfloat16, 2),
    "F16": (torch.float16, 2),
    "F32": (torch.float32, 4),
    "F64": (torch.float64, 8),
    "U8": (torch.uint8, 1),
    "I8": (torch.int8, 1),
    "I16": (torch.int16, 2),
    "I32": (torch.int32, 4),
    "I64": (torch.int64, 8),
    "BOOL": (torch.bool, 1),
    "F8_E4M3": (torch.float8_e4m3fn, 1),
    "F8_E5M2": (torch.float8_e5m2, 1),
    "F8_E8M0": (torch.uint8, 1),
}
# Kimi-K3's largest shard header is under 2 MiB; the format's own limit is 100 MB.
_HEADER_MAX = 100_000_000
_JSON_MAX = 1 << 29
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DIM_MAX = 1 << 40
_RANK_MAX = 8
_WORD = 4
# Walking over a tensor keeps this much of it mapped.
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of one shard: `begin` and `end` are bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    begin: int
    end: int


class Checkpoint:
    """All tensors of a checkpoint directory by name; shards are mapped when first read."""

    def __init__(self, shards: tuple[Path, ...], entries: Mapping[str, TensorEntry]) -> None:
        self.shards = shards
        self.entries = entries
        self._maps: dict[int, mmap.mmap] = {}
        self._mapping = Lock()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def tensor(self, name: str) -> Tensor:
        """The tensor as a read-only view of the mapped file; nothing is read until it is used."""
        entry = self.entries[name]
        dtype, itemsize = DTYPES[entry.dtype]
        count = (entry.end - entry.begin) // itemsize
        if count == 0:
            return torch.empty(entry.shape, dtype=dtype)
        raw = memoryview(self._map(entry.shard))[entry.begin : entry.end]
        flat = torch.frombuffer(raw, dtype=torch.uint8)
        if entry.begin % _WORD:
            flat = flat.clone()  # packing moves whole words, which a copy aligns
        return flat.view(dtype).reshape(entry.shape)

    def row_blocks(self, name: str, multiple: int) -> Iterator[tuple[int, Tensor]]:
        """Blocks of rows (first row, rows), each a multiple of `multiple` but the last.

        The pages behind a block are given back once the next one is asked for, so that walking over
        a tensor holds a block of it in memory and not the whole.
        """
        entry, whole = self.entries[name], self.tensor(name)
        rows = entry.shape[0]
        row_bytes = max(1, (entry.end - entry.begin) // max(1, rows))
        step = max(1, _BLOCK_BYTES // (row_bytes * multiple)) * multiple
        for first in range(0, rows, step):
            yield first, whole[first : first + step]
            last = min(rows, first + step)
            self._drop(entry, entry.begin + first * row_bytes, entry.begin + last * row_bytes)

    def drop(self, name: str) -> None:
        """Give back the pages behind a tensor that has been consumed."""
        entry = self.entries[name]
        self._drop(entry, entry.begin, entry.end)

    def _drop(self, entry: TensorEntry, begin: int, end: int) -> None:
        page = mmap.PAGESIZE
        first, last = -(-begin // page) * page, end // page * page
        if last > first:
            self._map(entry.shard).madvise(mmap.MADV_DONTNEED, first, last - first)

    def _map(self, shard: int) -> mmap.mmap:
        with self._mapping:
            if shard not in self._maps:
                with self.shards[shard].open("rb") as file:
                    # Private and writable: torch asks for writable memory, the file stays as it is.
                    self._maps[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return self._maps[shard]


def read_config(path: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint directory. Raises ConfigError when there is none to read."""
    file = path / "config.json"
    if not file.is_file():
        raise ConfigError(f"{path}: no config.json; give the directory of a checkpoint")
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON ({error}); download it again") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: expected a JSON object, found {type(raw).__name__}")
    return raw


def open_checkpoint(path: Path) -> Checkpoint:
    """Read and check every header of a checkpoint directory; the data stay on disk.

    Raises CheckpointError naming file and tensor for a missing or truncated shard, a header that is
    not one, sizes that do not agree, overlapping tensors, or an index that names what is not there.
    """
    index = path / _INDEX
    weight_map = _read_index(index) if index.is_file() else None
    names = sorted(set(weight_map.values())) if weight_map is not None else [_SINGLE]
    shards = tuple(path / name for name in names)
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise CheckpointError(f"{path}: missing {', '.join(missing[:8])}; complete the download")
    entries: dict[str, TensorEntry] = {}
    for number, shard in enumerate(shards):
        for entry in read_header(shard, number):
            if entry.name in entries:
                raise CheckpointError(f"{shard}: tensor '{entry.name}' is in two shards")
            entries[entry.name] = entry
    _check_index(path, weight_map or {}, names, entries)
    return Checkpoint(shards, entries)


def _check_index(
    path: Path, weight_map: Mapping[str, str], names: list[str], entries: Mapping[str, TensorEntry]
) -> None:
    for name, shard in weight_map.items():
        if name not in entries or names[entries[name].shard] != shard:
            raise CheckpointError(
                f"{path / _INDEX}: tensor '{name}' is not in {shard}, where the index puts it"
            )


def _read_index(index: Path) -> dict[str, str]:
    if index.stat().st_size > _JSON_MAX:
        raise CheckpointError(f"{index}: {index.stat().st_size} bytes is no index of tensors")
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index}: not an index of tensors ({error!r})") from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: 'weight_map' is empty or not an object")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise CheckpointError(f"{index}: tensor '{name}' names the shard {shard!r}")
    return weight_map


def read_header(shard: Path, number: int = 0) -> list[TensorEntry]:
    """The checked entries of one file, in order of their data."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or not 2 <= length <= min(_HEADER_MAX, size - 8):
            raise CheckpointError(
                f"{shard}: {size} bytes with a header length of {length}: truncated, or not a "
                "safetensors file; download it again"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{shard}: the header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{shard}: the header is not a JSON object")
    header.pop("__metadata__", None)
    entries = [_entry(shard, number, name, value) for name, value in header.items()]
    return _placed(shard, entries, 8 + length, size)


def _entry(shard: Path, number: int, name: str, value: Any) -> TensorEntry:
    """Offsets still count from the data; dtype, shape and byte count agree."""
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"{shard}: tensor '{name}' has a malformed entry") from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{shard}: tensor '{name}' has the unknown dtype {dtype!r}")
    numbers = (*shape, begin, end)
    if len(shape) > _RANK_MAX or any(
        isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < _DIM_MAX for n in numbers
    ):
        raise CheckpointError(
            f"{shard}: tensor '{name}' has the shape {list(shape)} and offsets {[begin, end]}"
        )
    wanted = math.prod(shape) * DTYPES[dtype][1]
    if wanted != end - begin:
        raise CheckpointError(
            f"{shard}: tensor '{name}' of shape {list(shape)} and dtype {dtype} needs {wanted} "
            f"bytes, its offsets span {end - begin}"
        )
    return TensorEntry(name, dtype, shape, number, begin, end)


def _placed(shard: Path, entries: list[TensorEntry], start: int, size: int) -> list[TensorEntry]:
    """Entries with offsets from the start of the file: inside it, and no two overlapping."""
    placed: list[TensorEntry] = []
    reached = 0
    for e in sorted(entries, key=lambda e: (e.begin, e.end)):
        if e.begin < reached:
            raise CheckpointError(f"{shard}: tensor '{e.name}' overlaps the one before it")
        if start + e.end > size:
            raise CheckpointError(
                f"{shard}: tensor '{e.name}' ends at byte {start + e.end} of {size}: the file is "
                "truncated; download it again"
            )
        reached = e.end
        placed.append(
            TensorEntry(e.name, e.dtype, e.shape, e.shard, start + e.begin, start + e.end)
        )
    return placed
