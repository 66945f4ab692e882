"""The standard runtime: the model on the ops, any mix of prefill and decode rows, any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError, RequestError
from stepfuse.model.k3 import CacheViews, K3Model
from stepfuse.ops.views import LatentView, Span, StateView
from stepfuse.runtime.batch import SequenceRows, StepInput, StepOutput
from stepfuse.weights.store import ModelWeights

if TYPE_CHECKING:
    from stepfuse.ops.native import Team


class StandardRuntime:
    """Runs steps over caches it does not own; always right, for every batch."""

    def __init__(
        self,
        geometry: Geometry,
        weights: ModelWeights,
        latent: Sequence[LatentView],
        state: Sequence[StateView],
        team: Team | None = None,
    ) -> None:
        self._check_views(geometry, latent, state)
        self._model = K3Model(geometry, weights, team)
        self._caches = CacheViews(tuple(latent), tuple(state))
        self._geometry = geometry

    def run(self, step: StepInput) -> StepOutput:
        """Execute one step: caches of its sequences move forward, wanted logits come back.

        RequestError for a token outside the vocabulary or rows that do not add up; CacheError for
        a page table or slot the caches do not have. Both leave every cache untouched.
        """
        spans = spans_of(step.sequences)
        self._check(step, spans)
        tokens = torch.from_numpy(step.tokens)
        rows = wanted_rows(step.sequences)
        if step.width == 0:
            return StepOutput(torch.empty((0, self._geometry.vocab)))
        hidden = self._model.forward(tokens, spans, self._caches)
        if len(rows) == 0:
            return StepOutput(torch.empty((0, self._geometry.vocab)))
        return StepOutput(self._model.logits(hidden[rows]))

    @staticmethod
    def _check_views(
        geometry: Geometry, latent: Sequence[LatentView], state: Sequence[StateView]
    ) -> None:
        have = (len(latent), len(state))
        want = (len(geometry.mla_layers), len(geometry.kda_layers))
        if have != want:
            raise CacheError(f"caches of {have} (MLA, KDA) layers for a model of {want}")

    def _check(self, step: StepInput, spans: Sequence[Span]) -> None:
        rows = sum(s.rows for s in spans)
        if rows != step.width:
            raise RequestError(f"{step.width} tokens for sequences of {rows} rows together")
        if rows == 0:
            return
        low, high = int(step.tokens.min()), int(step.tokens.max())
        if low < 0 or high >= self._geometry.vocab:
            raise RequestError(
                f"token ids {low}..{high} for a vocabulary of {self._geometry.vocab}"
            )
        for span in spans:
            self._check_span(span)

    def _check_span(self, span: Span) -> None:
        if self._caches.state and not 0 <= span.slot < len(self._caches.state[0].state):
            raise CacheError(f"state slot {span.slot} does not exist")
        if not self._caches.latent:
            return
        view = self._caches.latent[0]
        needed = -(-(span.cached + span.rows) // view.page_tokens)
        pages = span.pages[:needed]
        if len(pages) < needed or (needed and not 0 <= pages.min() <= pages.max() < len(view.data)):
            raise CacheError(
                f"{span.cached + span.rows} tokens need {needed} pages below {len(view.data)}, "
                f"the page table holds {len(span.pages)}: {pages.tolist()[:8]}"
            )


def spans_of(sequences: Sequence[SequenceRows]) -> tuple[Span, ...]:
    """Where each sequence's rows lie in the step."""
    spans = []
    start = 0
    for s in sequences:
        spans.append(Span(start, s.rows, s.slot, s.cached, s.pages))
        start += s.rows
    return tuple(spans)


def wanted_rows(sequences: Sequence[SequenceRows]) -> Tensor:
    """int64 indices of the rows whose logits are wanted, in order."""
    wanted: list[int] = []
    start = 0
    for s in sequences:
        first = {"all": 0, "last": max(0, s.rows - 1), "none": s.rows}[s.logits]
        wanted.extend(range(start + first, start + s.rows))
        start += s.rows
    return torch.tensor(wanted, dtype=torch.int64)
