"""From a stream of token ids to a stream of text that never splits a character."""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer a stream needs: ids 0..vocab-1 have bytes."""

    @property
    def vocab(self) -> int: ...
    def token_bytes(self, token: int) -> bytes: ...


class DetokenizeStream:
    """Bytes of incomplete UTF-8 wait for the next token; `finish` turns a rest into U+FFFD.

    The pieces joined equal the one-shot decoding of all ids with errors replaced. An id behind the
    tokenizer's (a model may pad its vocabulary) reads U+FFFD.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        known = token < self._tokenizer.vocab
        # 0xff is never part of UTF-8, so it reads as one replacement character.
        return self._decoder.decode(self._tokenizer.token_bytes(token) if known else b"\xff")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
