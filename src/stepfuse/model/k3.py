"""The standard model: both members, any mix of rows, in PyTorch on the ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.model.context import Context
from stepfuse.model.layer import CacheView, run_layer
from stepfuse.model.residual import embed, residual
from stepfuse.ops.linear import linear
from stepfuse.ops.norm import rms_norm
from stepfuse.ops.views import LatentView, Span, StateView
from stepfuse.weights.store import ModelWeights

if TYPE_CHECKING:
    from stepfuse.ops.native import Team


@dataclass(frozen=True, slots=True)
class CacheViews:
    """`latent`: one per MLA layer, `state`: one per KDA layer, both in layer order."""

    latent: Sequence[LatentView]
    state: Sequence[StateView]

    def by_layer(self, geometry: Geometry) -> tuple[CacheView, ...]:
        """Each layer's own cache."""
        latent, state = iter(self.latent), iter(self.state)
        return tuple(
            next(latent) if kind == "mla" else next(state) for kind in geometry.layer_kinds
        )


class K3Model:
    """Geometry and weights; holds no caches and no state between calls."""

    def __init__(self, geometry: Geometry, weights: ModelWeights, team: Team | None = None) -> None:
        self.geometry = geometry
        self.weights = weights
        self.team = team

    def forward(self, tokens: Tensor, spans: Sequence[Span], caches: CacheViews) -> Tensor:
        """Token ids [R] to the normalised hidden rows FP32 [R, hidden]; caches move forward."""
        context = Context(self.geometry, spans, self.team)
        stream = residual(embed(tokens, self.weights.embed), self.geometry)
        views = caches.by_layer(self.geometry)
        for index, (layer, view) in enumerate(zip(self.weights.layers, views, strict=True)):
            run_layer(index, layer, stream, view, context)
        mixed = stream.output(self.weights.output_res)
        return rms_norm(mixed, self.weights.final_norm, self.geometry.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `forward` FP32 [n, hidden] to FP32 [n, vocab]."""
        return linear(hidden, self.weights.lm_head, self.team)
