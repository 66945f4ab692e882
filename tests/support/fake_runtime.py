"""A runtime and a cache pool with exact, cheap behaviour: what the engine's tests stand on.

The fake model keeps a running hash per slot as its "state" and the tokens themselves in its pages,
so that a wrong slot, page table, order or position changes the logits, as in the real one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.core.errors import CacheError
from stepfuse.engine.parts import Facts, Parts
from stepfuse.runtime.batch import StepInput, StepOutput
from stepfuse.runtime.plan import DecodeBackend
from tests.support.geometries import small_k3

VOCAB = 512


class FakePool:
    """Pages and slots that refuse double use; `used` must be empty when an engine is idle."""

    def __init__(self, pages: int = 64, slots: int = 8, page_tokens: int = 4) -> None:
        self.page_tokens = page_tokens
        self.pages: list[int] = list(range(pages))[::-1]
        self.slots: list[int] = list(range(slots))[::-1]
        self.all = (pages, slots)
        self.tokens = np.full((pages, page_tokens), -1, dtype=np.int64)
        self.state = np.full(slots, -1, dtype=np.int64)

    @property
    def free_pages(self) -> int:
        return len(self.pages)

    @property
    def free_slots(self) -> int:
        return len(self.slots)

    @property
    def idle(self) -> bool:
        return sorted(self.pages) == list(range(self.all[0])) and sorted(self.slots) == list(
            range(self.all[1])
        )

    def take_pages(self, count: int) -> NDArray[np.int32]:
        if count > len(self.pages):
            raise CacheError("no pages")
        return np.array([self.pages.pop() for _ in range(count)], dtype=np.int32)

    def give_pages(self, pages: NDArray[np.int32]) -> None:
        for page in pages.tolist():
            assert page not in self.pages, "page given back twice"
            self.tokens[page] = -1
            self.pages.append(page)

    def take_slot(self) -> int:
        if not self.slots:
            raise CacheError("no slots")
        slot = self.slots.pop()
        self.state[slot] = 0
        return slot

    def give_slot(self, slot: int) -> None:
        assert slot not in self.slots, "slot given back twice"
        self.state[slot] = -1
        self.slots.append(slot)


class FakeRuntime:
    """Deterministic logits of the whole text so far; records every step it ran."""

    def __init__(self, pool: FakePool) -> None:
        self.pool = pool
        self.steps: list[StepInput] = []
        self.nan_token = -1
        self.fail_at: int | None = None

    def run(self, step: StepInput) -> StepOutput:
        if self.fail_at is not None and len(self.steps) >= self.fail_at:
            raise RuntimeError("the fake runtime fails")
        self.steps.append(step)
        rows, start = [], 0
        for seq in step.sequences:
            chunk = step.tokens[start : start + seq.rows]
            start += seq.rows
            for i, token in enumerate(chunk.tolist()):
                logits = self._row(seq.slot, seq.cached + i, seq.pages, token)
                last = i == seq.rows - 1
                if seq.logits == "all" or (seq.logits == "last" and last):
                    rows.append(logits)
        assert start == len(step.tokens)
        out = torch.stack(rows) if rows else torch.empty((0, VOCAB))
        return StepOutput(out, 1000)

    def _row(self, slot: int, position: int, pages: NDArray[np.int32], token: int) -> torch.Tensor:
        size = self.pool.page_tokens
        self.pool.tokens[pages[position // size], position % size] = token
        text = [int(self.pool.tokens[pages[t // size], t % size]) for t in range(position + 1)]
        assert -1 not in text, "a page of the table was never written"
        state = expected_state(text[:-1])
        assert self.pool.state[slot] == state, "the state is not that of this text"
        self.pool.state[slot] = expected_state(text)
        if token == self.nan_token:
            return torch.full((VOCAB,), float("nan"))
        return expected_logits(text)


def expected_state(text: list[int]) -> int:
    state = 0
    for token in text:
        state = (state * 1_000_003 + token + 1) % (2**31 - 1)
    return state


def expected_logits(text: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(expected_state(text))
    return torch.randn(VOCAB, generator=generator)


def expected_greedy(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(int(expected_logits(text).argmax()))
    return text[len(prompt) :]


def fake_parts(
    pool: FakePool | None = None,
    backend: DecodeBackend = "auto",
    tokenizer: TiktokenTokenizer | None = None,
    **changes: object,
) -> Parts:
    """Parts over one FakePool; `standard` and `fused` are two FakeRuntimes of it."""
    pool = FakePool() if pool is None else pool
    values: dict[str, object] = {
        "geometry": replace(small_k3(), vocab=VOCAB),
        "pool": pool,
        "standard": FakeRuntime(pool),
        "fused": FakeRuntime(pool),
        "prepared_rows": 8,
        "backend": backend,
        "max_model_len": pool.page_tokens * pool.all[0],
        "facts": Facts("fake", "bf16", 1, "none"),
        "tokenizer": tokenizer,
        "prefill_chunk": 6,
        "max_num_seqs": pool.all[1],
    }
    values.update(changes)
    return Parts(**values)  # type: ignore[arg-type]
