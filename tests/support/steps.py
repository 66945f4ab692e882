"""A specialized runtime over caches of its own, driven like a tiny engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.cache.kda_state import StateCache, StateLayout
from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.core.config import Geometry
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.fused import FusedRuntime
from stepfuse.weights.store import ModelWeights
from tests.support.geometries import flat, small_k3, small_linear
from tests.support.pack_weights import pack_model
from tests.support.random_weights import random_tensors

PAGE_TOKENS = 8
PAGES = 96
SLOTS = 10

MODELS = {
    "k3": small_k3(),
    "k3_bf16_experts": small_k3("bf16"),
    "linear": small_linear(),
    "k3_flat": flat(small_k3()),
    "linear_flat": flat(small_linear()),
}


@cache
def packed(name: str) -> ModelWeights:
    # Clones: NumPy's arrays, unlike torch's and the arena's, are not 64-byte aligned.
    tensors = {key: value.clone() for key, value in random_tensors(MODELS[name]).items()}
    return pack_model(MODELS[name], tensors)


@cache
def team(threads: int) -> _native.Team:
    return _native.Team(threads)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a step runs; the model stays the same."""

    threads: int = 1
    level: str = "scalar"
    kv: KvDtype = "bf16"
    max_rows: int = 8
    fuse_heads: bool = False


@dataclass(slots=True)
class Stream:
    """One sequence: its slot, its pages, and how many of its tokens are cached."""

    slot: int
    pages: list[int]
    cached: int = 0


class Driver:
    """Sequences by name; caches start as garbage (pages of NaN records, states of NaN)."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.geometry: Geometry = MODELS[name]
        self.latent = LatentCache(LatentLayout.of(self.geometry, setting.kv, PAGE_TOKENS), PAGES)
        self.state = StateCache(StateLayout.of(self.geometry), SLOTS)
        self.latent.data.fill_(0xFF)
        self.state.state.fill_(float("nan"))
        self.state.conv.fill_(float("nan"))
        views = (self.latent.views(), self.state.views())
        self.runtime = FusedRuntime(
            self.geometry,
            packed(name),
            *views,
            team(setting.threads),
            setting.max_rows,
            level=setting.level,
            fuse_heads=setting.fuse_heads,
        )
        self.runtime.native.poison()

    def start(self, slot: int, first_page: int) -> Stream:
        """A fresh sequence; its pages descend, so that neighbours in time are not in memory."""
        return Stream(slot, [first_page + 11 - i for i in range(12)])

    def step(
        self,
        work: Sequence[tuple[Stream, Sequence[int]]],
        logits: Literal["last", "all", "none"] = "all",
    ) -> Tensor:
        """Each sequence takes its tokens in one step; returns a copy of the wanted logits."""
        rows = tuple(
            SequenceRows(s.slot, len(t), s.cached, np.array(s.pages, np.int32), logits)
            for s, t in work
        )
        tokens = np.array([token for _, part in work for token in part], np.int32)
        out = self.runtime.run(StepInput(tokens, rows)).logits.clone()
        for s, t in work:
            s.cached += len(t)
        return out

    def decode(self, sequence: Stream, tokens: Sequence[int]) -> Tensor:
        """One token per step: logits [T, vocab]."""
        return torch.cat([self.step([(sequence, [token])]) for token in tokens])


def tokens_of(seed: int, count: int, vocab: int = 200) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (count,), generator=generator).tolist()
