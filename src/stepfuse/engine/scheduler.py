"""Continuous batching: who runs in the next step, with how many rows.

FIFO admission by slots and pages; prefill in chunks; prefill-only steps alternate with pure decode
steps instead of being mixed, so that decode stays on the specialized path. When pages run out the
youngest request gives up its place and is recomputed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stepfuse.core.errors import CacheError
from stepfuse.engine.sequence import Request
from stepfuse.runtime.batch import SequenceRows, StepInput


class CachePool(Protocol):
    """What the scheduler needs of the caches; `take_*` raise CacheError when there is none left."""

    @property
    def page_tokens(self) -> int: ...
    @property
    def free_pages(self) -> int: ...
    @property
    def free_slots(self) -> int: ...
    def take_pages(self, count: int) -> NDArray[np.int32]: ...
    def give_pages(self, pages: NDArray[np.int32]) -> None: ...
    def take_slot(self) -> int: ...
    def give_slot(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """`rows` tokens of `request` from `request.cached` on; `last`: its next token is chosen."""

    request: Request
    rows: int

    @property
    def last(self) -> bool:
        return self.rows == self.request.remaining


class Scheduler:
    """Holds every unfinished request. Not thread-safe: the engine's lock guards it."""

    def __init__(self, pool: CachePool, max_num_seqs: int, prefill_chunk: int) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._prefill_chunk = prefill_chunk
        self._prefilled_last = False
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[Work]:
        """The next step's rows, with pages for all of them; empty when nothing is left to do."""
        self._admit()
        prefilling = [r for r in self.running if r.remaining > 1]
        decoding = [r for r in self.running if r.remaining == 1]
        if decoding and (not prefilling or self._prefilled_last):
            self._prefilled_last = False
            work = self._decode(decoding)
            if work:
                return work
            # Every decoding request gave way to an older one that is still prefilling.
            prefilling = [r for r in prefilling if r.slot >= 0]
        self._prefilled_last = True
        work = self._prefill(prefilling)
        if not work and self.waiting:
            free = f"{self._pool.free_pages} free pages of {self._pool.page_tokens} tokens"
            raise CacheError(
                f"a sequence of {self.waiting[0].count} tokens does not fit the caches ({free}); "
                "raise cache_bytes"
            )
        return work

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and free what it holds."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def preempt_youngest(self) -> bool:
        """Send the youngest running request back to the head of the queue; False if none runs."""
        if not self.running:
            return False
        request = self.running.pop()
        self._release(request)
        self.waiting.appendleft(request)
        self.preemptions += 1
        return True

    def unfinished(self) -> list[Request]:
        return [*self.running, *self.waiting]

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_num_seqs and self._pool.free_slots:
            request = self.waiting[0]
            pages = -(-request.count // self._pool.page_tokens)
            if pages > self._pool.free_pages:
                return
            self._grow(request, request.count)
            request.slot = self._pool.take_slot()
            self.running.append(self.waiting.popleft())

    def _decode(self, decoding: list[Request]) -> list[Work]:
        for request in decoding:
            while request.slot >= 0 and not self._grow(request, request.count):
                self.preempt_youngest()
        return [Work(request, 1) for request in decoding if request.slot >= 0]

    def _prefill(self, prefilling: list[Request]) -> list[Work]:
        """Oldest first, up to prefill_chunk rows in all; pages were taken on admission."""
        budget, work = self._prefill_chunk, []
        for request in prefilling:
            rows = min(request.remaining, budget)
            if rows == 0:
                break
            work.append(Work(request, rows))
            budget -= rows
        return work

    def _grow(self, request: Request, tokens: int) -> bool:
        """Pages for the first `tokens` tokens; False when there are not enough."""
        missing = -(-tokens // self._pool.page_tokens) - request.page_count
        if missing <= 0:
            return True
        if missing > self._pool.free_pages:
            return False
        end = request.page_count + missing
        request.pages[request.page_count : end] = self._pool.take_pages(missing)
        request.page_count = end
        return True

    def _release(self, request: Request) -> None:
        if request.page_count:
            self._pool.give_pages(request.pages[: request.page_count].copy())
            request.page_count = 0
        if request.slot >= 0:
            self._pool.give_slot(request.slot)
            request.slot = -1
        request.cached = 0


def step_input(work: list[Work]) -> StepInput:
    """The rows of all work, one request after the other."""
    tokens, sequences = [], []
    for item in work:
        request = item.request
        tokens.append(request.tokens[request.cached : request.cached + item.rows])
        sequences.append(
            SequenceRows(
                slot=request.slot,
                rows=item.rows,
                cached=request.cached,
                pages=request.pages[: request.page_count],
                logits="last" if item.last else "none",
            )
        )
    return StepInput(np.concatenate(tokens), tuple(sequences))
