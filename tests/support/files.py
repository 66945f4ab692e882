"""Reading and rewriting checkpoints in tests, through the safetensors package, not through ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory."""
    tensors: dict[str, Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        tensors.update(load_file(shard))
    return tensors


def edit_tensors(path: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrite a one-file checkpoint after `edit` has changed its tensors in place."""
    tensors = read_tensors(path)
    edit(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")


def edit_config(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite config.json after `edit` has changed its text part in place."""
    file = path / "config.json"
    raw = json.loads(file.read_text())
    edit(raw.get("text_config", raw))
    file.write_text(json.dumps(raw))


def write_raw(path: Path, header: bytes, data: bytes = b"") -> None:
    """A safetensors file with any bytes for a header."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def header_of(**tensors: tuple[str, list[int], list[int]]) -> bytes:
    """A header of (dtype, shape, data_offsets) entries."""
    return json.dumps(
        {
            name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            for name, (dtype, shape, offsets) in tensors.items()
        }
    ).encode()
