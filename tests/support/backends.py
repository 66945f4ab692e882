"""Both runtimes under one roof: logits of one sequence through either of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.cache.kda_state import StateCache, StateLayout
from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.core.config import Geometry
from stepfuse.ops.dispatch import native_available
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.plan import Path
from stepfuse.runtime.standard import StandardRuntime
from stepfuse.weights.store import ModelWeights

each_backend = pytest.mark.parametrize("backend", ["standard", "latency_specialized"])

PAGE_TOKENS = 8
PAGES = 24
SLOT = 1


class Caches:
    """Caches of one sequence in slot 1 of 3, its pages scattered; garbage until written."""

    def __init__(self, g: Geometry, kv: KvDtype) -> None:
        self.latent = LatentCache(LatentLayout.of(g, kv, PAGE_TOKENS), PAGES)
        self.state = StateCache(StateLayout.of(g), 3)
        self.latent.data.fill_(0xFF)
        self.state.state.fill_(torch.nan)
        self.state.conv.fill_(torch.nan)
        self.state.reset(SLOT)
        self.pages = np.random.RandomState(2).permutation(PAGES).astype(np.int32)


def logits_of(
    backend: Path, g: Geometry, weights: ModelWeights, tokens: Sequence[int], kv: KvDtype = "bf16"
) -> Tensor:
    """FP32 [T, vocab]. The standard runtime takes chunks and single tokens in turn, the
    specialized one a token per step; the latter is skipped, visibly, where it is not built.
    """
    caches = Caches(g, kv)
    views = (caches.latent.views(), caches.state.views())
    if backend == "standard":
        runtime = StandardRuntime(g, weights, *views)
        widths = itertools.cycle([9, 1, 5, 1, 1])
    else:
        if not native_available():
            pytest.skip("the native core is not built")
        from stepfuse import _native
        from stepfuse.runtime.fused import FusedRuntime

        runtime = FusedRuntime(g, weights, *views, _native.Team(2))
        widths = itertools.repeat(1)
    parts, begin = [], 0
    while begin < len(tokens):
        part = np.array(tokens[begin : begin + next(widths)], dtype=np.int32)
        row = SequenceRows(SLOT, len(part), begin, caches.pages, "all")
        parts.append(runtime.run(StepInput(part, (row,))).logits.clone())
        begin += len(part)
    return torch.cat(parts)
