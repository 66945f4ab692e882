"""The prepared file: the arena as it stands in memory, on disk, so that loading is mapping.

Layout: magic, version and header length (little endian), SHA-256 of the header, the header as JSON;
at byte BODY_OFFSET the arena itself. The header says of which checkpoint and which layout it is.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CheckpointError, MemoryPlanError
from stepfuse.weights.layout import Placement
from stepfuse.weights.progress import byte_progress
from stepfuse.weights.reader import Checkpoint

Prepared = Literal["auto", "off", "require"]

FILE_NAME: Final = "stepfuse-prepared.bin"
# Counts up whenever the arena's order of bytes changes for the same geometry.
LAYOUT_VERSION: Final = 1
# One huge page: the body can stand on huge pages where the file system gives them.
BODY_OFFSET: Final = 2 << 20
_MAGIC: Final = b"STEPFUSE"
_FIXED: Final = struct.Struct("<8sII32s")
_BLOCK: Final = 64 << 20
_SAMPLE: Final = 4096
_SAMPLES: Final = 64
_POPULATE_READ: Final = 22  # Linux 5.14: fault a range in at once
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Header:
    """`checkpoint` and `layout`: digests of what the file was made from; `checksums`: CRC-32 of
    each block of `block_bytes` of the body.
    """

    checkpoint: str
    layout: str
    layout_version: int
    byte_order: str
    arena_bytes: int
    notices: tuple[str, ...]
    block_bytes: int
    checksums: tuple[int, ...]


def checkpoint_digest(checkpoint: Checkpoint, folder: Path) -> str:
    """SHA-256 over config, index, and each shard's name, size, header and 64 samples of 4 KiB.

    A shard that was replaced, cut or re-exported differs; a change of a few bytes between samples
    goes unseen (`stepfuse prepare --check` reads everything).
    """
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors.index.json"):
        file = folder / name
        digest.update(file.read_bytes() if file.is_file() else b"")
    for shard in checkpoint.shards:
        size = shard.stat().st_size
        digest.update(f"{shard.name} {size}".encode())
        with shard.open("rb") as source:
            length = source.read(8)
            digest.update(length + source.read(int.from_bytes(length, "little")))
            for i in range(_SAMPLES):
                source.seek(size * i // _SAMPLES)
                digest.update(source.read(_SAMPLE))
    return digest.hexdigest()


def layout_digest(geometry: Geometry, placements: tuple[Placement, ...]) -> str:
    """SHA-256 over the geometry and where every field stands."""
    text = json.dumps(asdict(geometry), default=str, sort_keys=True)
    fields = "".join(f"{p.spec.layer} {p.spec.field} {p.offset} {p.bytes}\n" for p in placements)
    return hashlib.sha256((text + fields).encode()).hexdigest()


def write_prepared(file: Path, arena: Tensor, header: Header, quiet: bool = False) -> None:
    """Write `arena` and the header with its checksums; the file appears whole or not at all.

    Raises MemoryPlanError where the disk has no room for it.
    """
    size = BODY_OFFSET + arena.numel()
    free = shutil.disk_usage(file.parent).free
    if size > free:
        raise MemoryPlanError(
            f"{file} needs {size / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free: make room"
        )
    partial = file.with_name(file.name + ".part")
    sums = []
    try:
        with partial.open("wb") as out, byte_progress(f"writing {file.name}", size, quiet) as tick:
            out.seek(BODY_OFFSET)
            for block in _blocks(memoryview(arena.numpy().data)):
                sums.append(zlib.crc32(block))
                out.write(block)
                tick(len(block))
            out.seek(0)
            out.write(_header_bytes(header, tuple(sums)))
            out.flush()
            os.fsync(out.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def read_prepared(file: Path) -> Header:
    """The header of a prepared file. CheckpointError where it is not whole or not one."""
    with file.open("rb") as source:
        start = source.read(_FIXED.size)
        if len(start) < _FIXED.size or start[:8] != _MAGIC:
            raise _damaged(file, "it does not start as one")
        _, version, length, digest = _FIXED.unpack(start)
        text = source.read(min(length, BODY_OFFSET))
    if hashlib.sha256(text).digest() != digest:
        raise _damaged(file, "its header does not match its checksum")
    values: dict[str, Any] = json.loads(text)
    if version != LAYOUT_VERSION or values.get("layout_version") != LAYOUT_VERSION:
        raise CheckpointError(
            f"{file} is of layout {version}, this stepfuse writes {LAYOUT_VERSION}: "
            "run `stepfuse prepare` again"
        )
    values["notices"], values["checksums"] = tuple(values["notices"]), tuple(values["checksums"])
    header = Header(**values)
    found = file.stat().st_size
    if found != BODY_OFFSET + header.arena_bytes:
        raise _damaged(file, f"it has {found} bytes of {BODY_OFFSET + header.arena_bytes}")
    return header


def check_prepared(file: Path, wanted: Header) -> Header:
    """The header of `file` where it is of the same checkpoint and layout as `wanted`.

    CheckpointError saying what differs otherwise.
    """
    header = read_prepared(file)
    for what, found, want in (
        ("checkpoint", header.checkpoint, wanted.checkpoint),
        ("layout", header.layout, wanted.layout),
        ("byte order", header.byte_order, wanted.byte_order),
        ("size", header.arena_bytes, wanted.arena_bytes),
    ):
        if found != want:
            raise CheckpointError(
                f"{file} is stale: it was made for another {what} ({str(found)[:12]}, now "
                f"{str(want)[:12]}): run `stepfuse prepare --force`"
            )
    return header


def check_body(file: Path, header: Header, quiet: bool = False) -> None:
    """CheckpointError naming the first block whose bytes have changed."""
    body = memoryview(_map(file))[BODY_OFFSET:]
    with byte_progress(f"checking {file.name}", len(body), quiet) as tick:
        for i, block in enumerate(_blocks(body, header.block_bytes)):
            if zlib.crc32(block) != header.checksums[i]:
                raise _damaged(file, f"block {i} of {len(header.checksums)} does not match")
            tick(len(block))


def map_prepared(file: Path, header: Header, quiet: bool = False) -> Tensor:
    """The arena as a private mapping of the file, every page present; nothing is copied."""
    block = _map(file)
    end = BODY_OFFSET + header.arena_bytes
    with (
        byte_progress(f"mapping {file.name}", end, quiet) as tick,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        starts = range(0, end, _BLOCK)
        for size in pool.map(lambda at: _populate(block, at, min(_BLOCK, end - at)), starts):
            tick(size)
    whole = torch.frombuffer(block, dtype=torch.uint8)
    return whole[BODY_OFFSET : BODY_OFFSET + header.arena_bytes]


def new_header(arena_bytes: int, checkpoint: str, layout: str, notices: tuple[str, ...]) -> Header:
    """A header of this machine and version, without checksums."""
    return Header(
        checkpoint=checkpoint,
        layout=layout,
        layout_version=LAYOUT_VERSION,
        byte_order=sys.byteorder,
        arena_bytes=arena_bytes,
        notices=notices,
        block_bytes=_BLOCK,
        checksums=(),
    )


def _header_bytes(header: Header, checksums: tuple[int, ...]) -> bytes:
    text = json.dumps({**asdict(header), "checksums": checksums}).encode()
    if _FIXED.size + len(text) > BODY_OFFSET:
        raise CheckpointError(f"a header of {len(text)} bytes does not fit before the body")
    digest = hashlib.sha256(text).digest()
    return _FIXED.pack(_MAGIC, header.layout_version, len(text), digest) + text


def _blocks(data: memoryview, size: int = _BLOCK) -> Iterator[memoryview]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def _map(file: Path) -> mmap.mmap:
    with file.open("rb") as source:
        # Private and writable: torch asks for writable memory, the file stays as it is.
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)


def _populate(block: mmap.mmap, at: int, size: int) -> int:
    try:
        block.madvise(_POPULATE_READ, at, size)
    except OSError:  # an older kernel: touch the pages
        sum(memoryview(block)[at : at + size : mmap.PAGESIZE])
    return size


def _damaged(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{file} is no whole prepared file: {why}; run `stepfuse prepare --force`"
    )
