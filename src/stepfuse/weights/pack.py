"""From tensors of a file to packed fields in the arena, block by block, without a whole-model copy.

Every function moves bit patterns; the only arithmetic is the rounding of FP32 tensors that the
kernels want in BF16, which is counted and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, TILE_ROWS
from stepfuse.core.errors import CheckpointError
from stepfuse.ops.mxfp4 import SCALE_NAN
from stepfuse.ops.packed import ExpertLayout, as_bits, pack_rows
from stepfuse.weights.reader import Checkpoint

HALF_TILE = TILE_ROWS // 2


@dataclass(slots=True)
class Packer:
    """Copies tensors of one checkpoint; `rounded` counts FP32 values that BF16 cannot hold."""

    checkpoint: Checkpoint
    rounded: Counter[str] = field(default_factory=Counter)

    def linear(self, name: str, tiles: Tensor) -> None:
        """[out, in] into int16 tiles [out/32, in/2, 32, 2]; rows behind `out` stay as they are."""
        self._words(name, _pairs(tiles))

    def gate_up(self, names: Sequence[str], tiles: Tensor) -> None:
        """Two [width, in] into int16 tiles of 16 gate rows, then 16 up rows."""
        gate_name, up_name = names
        words = _pairs(tiles)
        self._words(gate_name, words[:, :, :HALF_TILE])
        self._words(up_name, words[:, :, HALF_TILE:])

    def plain(self, name: str, rows: Tensor) -> None:
        """[n, ...] into BF16 rows of the same element count."""
        for first, block in self.checkpoint.row_blocks(name, 1):
            rows[first : first + len(block)].copy_(self._bf16(name, block))

    def vector(self, name: str, out: Tensor) -> None:
        """[n] or [1, n] into BF16 [n]."""
        out.copy_(self._bf16(name, self.checkpoint.tensor(name)).reshape(-1))

    def floats(self, name: str, out: Tensor) -> None:
        """[n] in FP32 or BF16 into FP32 [n], exactly."""
        out.copy_(self.checkpoint.tensor(name).reshape(-1))

    def a_log(self, name: str, out: Tensor) -> None:
        """[H], [1, 1, H, 1] or a longer 1-D tensor with an exactly zero tail into FP32 [H]."""
        values = self.checkpoint.tensor(name).reshape(-1).float()
        heads = len(out)
        tail = values[heads:]
        if not torch.equal(tail, torch.zeros_like(tail)):
            raise CheckpointError(
                f"tensor '{name}' of shape {list(self.checkpoint.entries[name].shape)} has values "
                f"other than 0 behind its {heads} heads: it is not one decay per head"
            )
        out.copy_(values[:heads])

    def conv(self, names: Sequence[str], out: Tensor) -> None:
        """Three [C, 1, 4] or [C, 4] (q, k, v) into FP32 [3, 4, C]."""
        for part, name in enumerate(names):
            taps = self.checkpoint.tensor(name)
            out[part].copy_(taps.reshape(len(taps), -1).t())
            self.checkpoint.drop(name)

    def kv_b(self, name: str, w_uk: Tensor, w_uv: Tensor) -> None:
        """[H * (nope + v), L] into int16 tiles per head: W_UK transposed, and W_UV."""
        heads, nope = w_uk.shape[0], w_uk.shape[2] * 2
        weight = as_bits(self._bf16(name, self.checkpoint.tensor(name)))
        per_head = weight.reshape(heads, -1, weight.shape[-1])
        for head in range(heads):
            w_uk[head].copy_(pack_rows(per_head[head, :nope].t().contiguous()))
            w_uv[head].copy_(pack_rows(per_head[head, nope:]))
        self.checkpoint.drop(name)

    def expert_bf16(self, names: Sequence[str], block: Tensor, layout: ExpertLayout) -> None:
        """w1, w2, w3 of one expert into its uint8 block: gate/up tiles, then down tiles."""
        w1, w2, w3 = names
        in_features = self.checkpoint.entries[w1].shape[1]
        width = self.checkpoint.entries[w2].shape[1]
        w13 = _tiles_at(block, layout.w13, -(-width // HALF_TILE), in_features)
        self.gate_up((w1, w3), w13)
        self.linear(w2, _tiles_at(block, layout.w2, -(-in_features // TILE_ROWS), width))

    def expert_mxfp4(self, names: Sequence[str], block: Tensor, layout: ExpertLayout) -> None:
        """Nibbles and scales of w1, w2, w3 into the block of one expert; scale byte 255 refused."""
        w1, w2, w3 = names
        width, in_half = self.checkpoint.entries[f"{w1}_packed"].shape
        in_features = in_half * 2
        up, down = 2 * width // TILE_ROWS, in_features // TILE_ROWS
        nibbles = _words_at(block, layout.w13, up, in_features // 8)
        scales = _bytes_at(block, layout.w13_scale, up, in_features // FP4_GROUP)
        for half, name in enumerate((w1, w3)):
            rows = slice(half * HALF_TILE, (half + 1) * HALF_TILE)
            self._words(f"{name}_packed", nibbles[:, :, rows])
            self._scales(f"{name}_scale", scales[:, :, rows])
        self._words(f"{w2}_packed", _words_at(block, layout.w2, down, width // 8))
        self._scales(f"{w2}_scale", _bytes_at(block, layout.w2_scale, down, width // FP4_GROUP))

    def _words(self, name: str, tiles: Tensor) -> None:
        """[out, n words] into int32 tiles [out/r, n, r], r rows to a tile."""
        rows = tiles.shape[2]
        for first, block in self.checkpoint.row_blocks(name, rows):
            source = block if block.dtype == torch.uint8 else self._bf16(name, block)
            _copy_tiles(source.view(torch.int32), tiles[first // rows :])

    def _scales(self, name: str, tiles: Tensor) -> None:
        for first, block in self.checkpoint.row_blocks(name, tiles.shape[2]):
            if (block.numpy() == SCALE_NAN).any():
                raise CheckpointError(
                    f"tensor '{name}' holds the scale byte {SCALE_NAN}, which means NaN: the "
                    "checkpoint is damaged; download it again"
                )
            _copy_tiles(block, tiles[first // tiles.shape[2] :])

    def _bf16(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16:
            return tensor
        rounded = tensor.to(torch.bfloat16)
        changed = rounded.float() != tensor
        self.rounded[name] += int(changed.sum())
        return rounded


def _copy_tiles(source: Tensor, tiles: Tensor) -> None:
    """[rows, n] into [tiles, n, r]: whole tiles at once, then the rows that are left.

    By numpy: its strided copy moves 3.5 GB/s per core here, PyTorch's 0.6-3 (AMD Zen 3).
    """
    rows, out = source.numpy(), tiles.numpy()
    per_tile = out.shape[2]
    full = len(rows) // per_tile
    body = rows[: full * per_tile].reshape(full, per_tile, rows.shape[1])
    np.copyto(out[:full], body.transpose(0, 2, 1))
    if full * per_tile < len(rows):
        np.copyto(out[full, :, : len(rows) - full * per_tile], rows[full * per_tile :].T)


def _pairs(tiles: Tensor) -> Tensor:
    """int16 tiles [t, in/2, 32, 2] as int32 words [t, in/2, 32]."""
    return tiles.view(torch.int32).squeeze(-1)


def _tiles_at(block: Tensor, offset: int, tiles: int, cols: int) -> Tensor:
    size = tiles * cols * TILE_ROWS * 2
    part = block[offset : offset + size].view(torch.int16)
    return part.view(tiles, cols // 2, TILE_ROWS, 2)


def _words_at(block: Tensor, offset: int, tiles: int, words: int) -> Tensor:
    size = tiles * words * TILE_ROWS * 4
    return block[offset : offset + size].view(torch.int32).view(tiles, words, TILE_ROWS)


def _bytes_at(block: Tensor, offset: int, tiles: int, count: int) -> Tensor:
    return block[offset : offset + tiles * count * TILE_ROWS].view(tiles, count, TILE_ROWS)
