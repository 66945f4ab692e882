"""KDA recurrent state (FP32) and conv windows (BF16) of every KDA layer, in slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError
from stepfuse.ops.views import StateView

# Columns of v a kernel keeps in registers while it walks k: the state's inner tile.
STATE_TILE = 32


@dataclass(frozen=True, slots=True)
class StateLayout:
    """KDA layers, heads, head dim (a multiple of 32) and past inputs of the convolution."""

    layers: int
    heads: int
    dim: int
    past: int

    @classmethod
    def of(cls, geometry: Geometry) -> StateLayout:
        kda = geometry.kda
        return cls(len(geometry.kda_layers), kda.heads, kda.dim, kda.conv_kernel - 1)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """FP32 state of one slot in one layer."""
        return (self.heads, self.dim // STATE_TILE, self.dim, STATE_TILE)

    @property
    def conv_shape(self) -> tuple[int, ...]:
        """BF16 window of one slot in one layer: [past (oldest first), 3 (q,k,v), heads * dim]."""
        return (self.past, 3, self.heads * self.dim)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot over all layers."""
        width = self.heads * self.dim
        return self.layers * (4 * width * self.dim + 2 * self.past * 3 * width)


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A copy of one slot after `tokens` tokens of its sequence."""

    tokens: int
    layout: StateLayout
    state: Tensor
    conv: Tensor


class StateCache:
    """`state` FP32 [layers, slots, heads, dim/32, dim (k), 32 (v)] and `conv` BF16 [layers, slots,
    past, 3, heads * dim]. A slot is zero when it is taken.
    """

    def __init__(self, layout: StateLayout, slots: int) -> None:
        if slots < 1:
            raise CacheError(f"a state pool of {slots} slots: give it at least one")
        if layout.dim % STATE_TILE:
            raise CacheError(f"KDA head dim {layout.dim} is not a multiple of {STATE_TILE}")
        self.layout = layout
        self.slots = slots
        self.state = torch.zeros((layout.layers, slots, *layout.state_shape))
        self.conv = torch.zeros((layout.layers, slots, *layout.conv_shape), dtype=torch.bfloat16)
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def alloc(self) -> int:
        """Take a slot, zeroed. CacheError when none is free."""
        if not self._free:
            raise CacheError(
                f"all {self.slots} state slots are taken: wait for a request to end, or raise "
                "max_num_seqs"
            )
        slot = self._free.pop()
        self.reset(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back; CacheError when it is not taken."""
        self._check_slot(slot)
        if slot in self._free:
            raise CacheError(f"state slot {slot} is free: it was already given back")
        self._free.append(slot)

    def reset(self, slot: int) -> None:
        """The state before the first token: all zero."""
        self._check_slot(slot)
        self.state[:, slot].zero_()
        self.conv[:, slot].zero_()

    def snapshot(self, slot: int, tokens: int) -> StateSnapshot:
        """A copy of the slot, which holds the state after `tokens` tokens."""
        self._check_slot(slot)
        state, conv = self.state[:, slot].clone(), self.conv[:, slot].clone()
        return StateSnapshot(tokens, self.layout, state, conv)

    def restore(self, slot: int, saved: StateSnapshot, tokens: int) -> None:
        """Put `saved` into the slot of a sequence whose KV holds `tokens` tokens.

        CacheError, with the slot untouched, when the snapshot is of another position (KV and
        state would not belong together) or of another geometry.
        """
        self._check_slot(slot)
        if saved.layout != self.layout:
            raise CacheError(f"snapshot of {saved.layout} does not fit a cache of {self.layout}")
        if saved.tokens != tokens:
            raise CacheError(
                f"state after {saved.tokens} tokens and KV of {tokens} tokens are from different "
                "positions: restore both from one point, or recompute"
            )
        self.state[:, slot] = saved.state
        self.conv[:, slot] = saved.conv

    def view(self, ordinal: int) -> StateView:
        """The view of the `ordinal`-th KDA layer (0-based among KDA layers)."""
        if not 0 <= ordinal < self.layout.layers:
            raise CacheError(f"KDA layer {ordinal} of {self.layout.layers}: no such cache")
        return StateView(self.state[ordinal], self.conv[ordinal])

    def views(self) -> tuple[StateView, ...]:
        """One view per KDA layer, in layer order."""
        return tuple(self.view(i) for i in range(self.layout.layers))

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise CacheError(f"state slot {slot} does not exist, the pool has {self.slots}")
