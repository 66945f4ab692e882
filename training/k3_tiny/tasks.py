"""Generated tasks with exact answers, as short plain lines between pieces of ordinary text.

    recall: river = stone            several such lines, then 0-400 tokens of ordinary text
    recall: river? stone             the question names a key, the answer is its value
    copy: amber 7 light -> amber 7 light
    sum: 37 + 45 = 82

A prompt ends where its answer begins: `recall: river?`, `copy: ... ->`, `sum: 37 + 45 =`. The
answer is the rest of the line with its leading space and its line end, so a solved task also
stops. Keys and values are words the tokenizer spells with one token, or numbers below 100.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import tiktoken

KINDS = ("recall", "copy", "sum")
# A definition's key and value cannot be foreseen: they carry little weight in the loss.
WEIGHT_TEXT, WEIGHT_PROMPT, WEIGHT_ANSWER = 1.0, 0.1, 8.0
WORDS = 256  # the most frequent ones; a short run meets each often enough to tell them apart

Filler = Callable[[int], list[int]]


@dataclass(frozen=True)
class Instance:
    """One task: the text up to the answer, and the answer with its line end."""

    kind: str
    prompt: str
    answer: str


class Writer:
    """Writes task lines with one tokenizer's single-token words."""

    def __init__(self, encoding: tiktoken.Encoding, rng: random.Random) -> None:
        self.encoding = encoding
        self.rng = rng
        pieces = (encoding.decode_single_token_bytes(i) for i in range(256, encoding.n_vocab - 256))
        spelled = [p.decode("ascii", "replace") for p in pieces]
        self.words = [p[1:] for p in spelled if re.fullmatch(r" [a-z]{3,9}", p)][:WORDS]

    def value(self) -> str:
        """A word, or now and then a number below 100."""
        return (
            str(self.rng.randrange(100)) if self.rng.random() < 0.2 else self.rng.choice(self.words)
        )

    def definitions(self, count: int) -> list[tuple[str, str]]:
        """`count` pairs with distinct keys."""
        return [(key, self.value()) for key in self.rng.sample(self.words, count)]

    def copy(self) -> Instance:
        """Three to eight words to repeat."""
        text = " ".join(self.value() for _ in range(self.rng.randint(3, 8)))
        return Instance("copy", f"copy: {text} ->", f" {text}\n")

    def sum(self) -> Instance:
        """Two numbers below 100 and their sum."""
        a, b = self.rng.randrange(100), self.rng.randrange(100)
        return Instance("sum", f"sum: {a} + {b} =", f" {a + b}\n")

    def recall(self, count: int, gap: str) -> Instance:
        """`count` definitions, the text `gap`, and a question about one of them."""
        pairs = self.definitions(count)
        key, value = self.rng.choice(pairs)
        return Instance("recall", f"{defined(pairs)}{gap}recall: {key}?", f" {value}\n")

    def recall_row(self, count: int, filler: Filler, gap: int) -> list[tuple[list[int], float]]:
        """Weighted spans: definitions, about `gap` tokens of text, then a question for each key."""
        pairs = self.definitions(count)
        spans = [(self.encode(defined(pairs)), WEIGHT_PROMPT)]
        if gap:
            spans.append((filler(gap) + self.encode("\n"), WEIGHT_TEXT))
        self.rng.shuffle(pairs)
        for key, value in pairs:
            spans.append((self.encode(f"recall: {key}?"), WEIGHT_PROMPT))
            spans.append((self.encode(f" {value}\n"), WEIGHT_ANSWER))
        return spans

    def line(self, task: Instance) -> list[tuple[list[int], float]]:
        """Weighted spans of one copy or sum line."""
        return [
            (self.encode(task.prompt), WEIGHT_PROMPT),
            (self.encode(task.answer), WEIGHT_ANSWER),
        ]

    def encode(self, text: str) -> list[int]:
        """Ordinary tokens of `text`."""
        return self.encoding.encode_ordinary(text)


def defined(pairs: list[tuple[str, str]]) -> str:
    """The definition lines of `pairs`."""
    return "".join(f"recall: {k} = {v}\n" for k, v in pairs)
