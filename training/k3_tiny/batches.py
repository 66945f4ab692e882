"""Rows for training: text windows and task rows, each beginning with [BOS]."""

from __future__ import annotations

import random

import numpy as np
import tiktoken
import torch

from training.k3_tiny import tokenizer
from training.k3_tiny.data import Piece
from training.k3_tiny.tasks import WEIGHT_TEXT, Writer

Span = tuple[list[int], float]
# Share of rows by what they hold; recall rows are mostly ordinary text between their task lines.
SHARE_RECALL, SHARE_LINES = 0.30, 0.17
# The first part of the run holds mostly tasks: looking up is learned first, and text gains by it.
FIRST_RECALL, FIRST_LINES, FIRST_UNTIL = 0.50, 0.35, 0.12


class Source:
    """Draws rows from the training pieces with a seeded generator."""

    def __init__(self, pieces: list[Piece], encoding: tiktoken.Encoding, seed: int) -> None:
        self.rng = random.Random(seed)
        self.writer = Writer(encoding, self.rng)
        self.texts = [np.array(encoding.encode_ordinary(p.text), dtype=np.int32) for p in pieces]
        self.newline = np.array(
            [b"\n" in encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab - 256)]
        )
        self.ends = np.cumsum([len(t) for t in self.texts])

    def window(self, size: int) -> list[int]:
        """`size` tokens of one file from the start of a line, or fewer where the file ends."""
        at = self.rng.randrange(int(self.ends[-1]))
        which = int(np.searchsorted(self.ends, at, side="right"))
        text = self.texts[which]
        start = at - int(self.ends[which]) + len(text)
        start = min(start, max(0, len(text) - size))
        breaks = np.flatnonzero(self.newline[text[max(0, start - 64) : start]])
        if len(breaks):
            start = max(0, start - 64) + int(breaks[-1]) + 1
        elif start < 64:
            start = 0
        return [int(t) for t in text[start : start + size]]

    def batch(self, rows: int, length: int, progress: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [rows, length + 1] and the loss weight of each [rows, length + 1].

        `progress` in 0..1 lengthens the recall gap from nothing to what a row can hold.
        """
        tokens = torch.empty(rows, length + 1, dtype=torch.long)
        weights = torch.empty(rows, length + 1)
        for row in range(rows):
            spans = self._row(length, progress)
            ids = [i for span, _ in spans for i in span][: length + 1]
            loss = [w for span, w in spans for _ in span][: length + 1]
            tokens[row] = torch.tensor(ids)
            weights[row] = torch.tensor(loss)
        return tokens, weights

    def _row(self, length: int, progress: float) -> list[Span]:
        spans: list[Span] = [([tokenizer.BOS], 0.0)]
        left = length
        kind = self.rng.random()
        recall, lines = SHARE_RECALL, SHARE_LINES
        if progress < FIRST_UNTIL:
            recall, lines = FIRST_RECALL, FIRST_LINES
        while left > 0:
            if kind < recall:
                added = self._recall(left, progress)
            elif kind < recall + lines:
                added = self._lines()
            else:
                added = [(self.window(left), WEIGHT_TEXT)]
                if len(added[0][0]) < left:
                    added.append(([tokenizer.EOS], WEIGHT_TEXT))
            spans += added
            left -= sum(len(s) for s, _ in added)
        return spans

    def _recall(self, left: int, progress: float) -> list[Span]:
        if left < 60:
            return [(self.window(left), WEIGHT_TEXT), ([tokenizer.EOS], WEIGHT_TEXT)]
        count = self.rng.randint(2, 6)
        longest = max(0, left - 15 * count)
        reach = min(longest, int(450 * max(0.0, progress * 2.5 - 0.25)))
        gap = self.rng.randint(0, reach)
        return self.writer.recall_row(count, self.window, gap if gap > 8 else 0)

    def _lines(self) -> list[Span]:
        if self.rng.random() < 0.6:
            tasks = [self.writer.sum() for _ in range(self.rng.randint(5, 12))]
        else:
            tasks = [self.writer.copy() for _ in range(self.rng.randint(2, 5))]
        spans = [s for task in tasks for s in self.writer.line(task)]
        if self.rng.random() < 0.3:
            spans.append((self.window(self.rng.randint(20, 120)), WEIGHT_TEXT))
            spans.append((self.writer.encode("\n"), WEIGHT_TEXT))
        return spans
