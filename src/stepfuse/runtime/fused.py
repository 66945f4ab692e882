"""The specialized runtime: a whole decode step in one native call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepfuse import _native
from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError, NativeError, RequestError
from stepfuse.ops import native
from stepfuse.ops.views import LatentView, StateView
from stepfuse.runtime.batch import SequenceRows, StepInput, StepOutput
from stepfuse.runtime.prepare import geometry_fields, latent_tuple, state_tuple, weight_addresses
from stepfuse.runtime.support import require_specialized
from stepfuse.weights.store import ModelWeights


class FusedRuntime:
    """Runs decode steps of 1..max_rows rows over caches it does not own.

    `latent`: a view per MLA layer, `state`: a view per KDA layer, in layer order, all of them with
    the same numbers of pages and slots. `level`: the ISA level, by default the one ops run on.
    Raises UnsupportedError with every reason when the model cannot be served, CacheError when the
    views do not fit it.
    """

    def __init__(
        self,
        geometry: Geometry,
        weights: ModelWeights,
        latent: Sequence[LatentView],
        state: Sequence[StateView],
        team: _native.Team,
        max_rows: int = 8,
        *,
        level: str | None = None,
        fuse_heads: bool = False,
    ) -> None:
        level = native.level() if level is None else level
        kv_dtype = latent[0].dtype if latent else "bf16"
        require_specialized(geometry, kv_dtype, level, max_rows)
        self._vocab = geometry.vocab
        self._max_rows = max_rows
        # The native step holds bare addresses: what they point into is kept alive here.
        self._held = (weights, tuple(latent), tuple(state))
        fields, addresses = geometry_fields(geometry, max_rows), weight_addresses(weights)
        try:
            self.native = _native.Step(fields, addresses, team, level, fuse_heads)
        except ValueError as error:
            raise NativeError(f"the step cannot be prepared: {error}") from error
        self._bind_caches(latent, state)
        self._bind_batch(geometry, latent)

    @property
    def level(self) -> str:
        """The ISA level that runs."""
        return self.native.level

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def run(self, step: StepInput) -> StepOutput:
        """One step: caches of its sequences move forward, wanted logits come back as a view that
        the next step overwrites.

        RequestError for a token outside the vocabulary or rows that do not add up; CacheError for
        a page or slot the caches do not have. Both leave every cache untouched.
        """
        width = step.width
        if width > self._max_rows:
            raise RequestError(f"{width} rows for a step prepared for {self._max_rows}")
        end = 0
        for sequence in step.sequences:
            end = self._place(sequence, end, width)
        if end != width:
            raise RequestError(f"{width} tokens for sequences of {end} rows together")
        if width == 0:
            return StepOutput(self._logits[:0])
        self._tokens[:width] = step.tokens
        try:
            native_ns = self.native.run(width)
        except IndexError as error:
            raise CacheError(str(error)) from error
        except ValueError as error:
            raise RequestError(str(error)) from error
        return StepOutput(self._wanted(step.sequences, width), native_ns)

    def _place(self, sequence: SequenceRows, start: int, width: int) -> int:
        """Fill rows [start, end) of the batch arrays and return end."""
        end = start + sequence.rows
        if sequence.rows < 0 or end > width:
            raise RequestError(f"{width} tokens for sequences of {end} rows or more")
        if self._page_tokens:
            used = -(-(sequence.cached + sequence.rows) // self._page_tokens)
            if not 0 <= used <= min(len(sequence.pages), self._pages.shape[1]):
                raise CacheError(
                    f"{sequence.cached + sequence.rows} tokens need {used} pages; the page table "
                    f"holds {len(sequence.pages)}, the caches {self._pages.shape[1]}"
                )
            self._pages[start:end, :used] = sequence.pages[:used]
        self._slots[start:end] = sequence.slot
        for row in range(sequence.rows):
            self._positions[start + row] = sequence.cached + row
        return end

    def _wanted(self, sequences: Sequence[SequenceRows], width: int) -> Tensor:
        if all(s.logits != "none" and (s.rows == 1 or s.logits == "all") for s in sequences):
            return self._logits[:width]
        wanted: list[int] = []
        end = 0
        for s in sequences:
            start, end = end, end + s.rows
            first = {"all": start, "last": max(start, end - 1), "none": end}[s.logits]
            wanted.extend(range(first, end))
        if wanted and wanted[-1] - wanted[0] == len(wanted) - 1:
            return self._logits[wanted[0] : wanted[-1] + 1]
        return self._logits[wanted]

    def _bind_caches(self, latent: Sequence[LatentView], state: Sequence[StateView]) -> None:
        pages = {len(view.data) for view in latent}
        tokens = {view.page_tokens for view in latent}
        slots = {len(view.state) for view in state} | {len(view.conv) for view in state}
        if len(pages) > 1 or len(tokens) > 1 or len(slots) > 1:
            raise CacheError(
                f"views with {sorted(pages)} pages of {sorted(tokens)} tokens and {sorted(slots)} "
                "slots: all layers of one kind must agree"
            )
        try:
            self.native.bind_caches(
                [latent_tuple(view) for view in latent],
                [state_tuple(view) for view in state],
                max(pages, default=0),
                max(slots, default=0),
            )
        except ValueError as error:
            raise CacheError(str(error)) from error

    def _bind_batch(self, geometry: Geometry, latent: Sequence[LatentView]) -> None:
        rows = self._max_rows
        self._page_tokens = latent[0].page_tokens if latent else 0
        # A sequence's table is never longer than the pool, nor than its longest context.
        table = 1
        if latent:
            longest = -(-max(geometry.max_positions, 1) // self._page_tokens)
            table = max(1, min(len(latent[0].data), longest))
        self._tokens: NDArray[np.int32] = np.zeros(rows, np.int32)
        self._positions: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._slots: NDArray[np.int32] = np.zeros(rows, np.int32)
        self._pages: NDArray[np.int32] = np.zeros((rows, table), np.int32)
        self._logits = torch.zeros((rows, self._vocab), dtype=torch.float32)
        self.native.bind_batch(
            self._tokens.ctypes.data,
            self._positions.ctypes.data,
            self._slots.ctypes.data,
            (self._pages.ctypes.data, table),
            self._logits.data_ptr(),
        )
