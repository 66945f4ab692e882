"""One request on its way through the engine: its tokens, its place in the caches, its end."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepfuse.chat.detokenize import DetokenizeStream
from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.engine.request import (
    FinishReason,
    RequestOutput,
    SamplingParams,
    StreamDelta,
    TokenLogprob,
)
from stepfuse.engine.stopping import StopText


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a request besides its own parameters: eos ids and the longest sequence."""

    eos_ids: frozenset[int]
    max_model_len: int


@dataclass(eq=False, slots=True)
class Request:
    """Mutable state of one request.

    `tokens` int32 [max tokens]: prompt, then generated ids, `count` of them valid. `cached` of them
    are in the caches; `slot` is -1 and `page_count` 0 while it holds none. `pages` int32: its page
    table, `page_count` valid. `streams`: somebody reads the deltas.
    """

    index: int
    prompt: str | None
    prompt_len: int
    params: SamplingParams
    seed: int
    ends: Ends
    tokens: NDArray[np.int32]
    pages: NDArray[np.int32]
    detokenizer: DetokenizeStream | None
    stop_text: StopText
    submitted: float
    count: int = 0
    cached: int = 0
    slot: int = -1
    page_count: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    first_token: float | None = None
    finished: float | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    streams: bool = True
    deltas: deque[StreamDelta] = field(default_factory=deque)

    @property
    def remaining(self) -> int:
        """Rows still to run before the next token can be chosen."""
        return self.count - self.cached

    def accept(self, token: int, logprob: TokenLogprob | None) -> None:
        """Append a chosen token, decide whether the request ends, and queue the delta."""
        if self.first_token is None:
            self.first_token = time.perf_counter()
        self.tokens[self.count] = token
        self.count += 1
        if logprob is not None:
            self.logprobs.append(logprob)
        text, reason = self._spell(token)
        if reason is None and self._full():
            reason = "length"
        if reason == "length":
            text += self._flush()
        self._queue((token,), text, logprob, reason)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """End without a further token."""
        if self.finish_reason is None:
            self.error = error
            self._queue((), self._flush(), None, reason)

    def output(self) -> RequestOutput:
        if self.finish_reason is None or self.finished is None:
            raise RuntimeError("the request has not finished")
        first = None if self.first_token is None else self.first_token - self.submitted
        ids = self.tokens[: self.count].tolist()
        return RequestOutput(
            prompt=self.prompt,
            prompt_token_ids=tuple(ids[: self.prompt_len]),
            token_ids=tuple(ids[self.prompt_len :]),
            text=None if self.detokenizer is None else "".join(self.text),
            finish_reason=self.finish_reason,
            logprobs=None if self.params.logprobs is None else tuple(self.logprobs),
            error=self.error,
            ttft_s=first,
            e2e_s=self.finished - self.submitted,
        )

    def _spell(self, token: int) -> tuple[str, FinishReason | None]:
        """Text the token adds, and "stop" where it ends the request (its own text is not shown)."""
        eos = token in self.ends.eos_ids and not self.params.ignore_eos
        if eos or token in self.params.stop_token_ids:
            return self._flush(), "stop"
        if self.detokenizer is None:
            return "", None
        text, stopped = self.stop_text.push(self.detokenizer.push(token))
        return text, "stop" if stopped else None

    def _full(self) -> bool:
        limit = self.params.max_tokens
        generated = self.count - self.prompt_len
        return self.count >= self.ends.max_model_len or (limit is not None and generated >= limit)

    def _flush(self) -> str:
        if self.detokenizer is None:
            return ""
        text, stopped = self.stop_text.push(self.detokenizer.finish())
        return text if stopped else text + self.stop_text.finish()

    def _queue(
        self,
        token_ids: tuple[int, ...],
        text: str,
        logprob: TokenLogprob | None,
        reason: FinishReason | None,
    ) -> None:
        self.text.append(text)
        if reason is not None:
            self.finished = time.perf_counter()
            self.finish_reason = reason
        if not self.streams:
            return
        logprobs = () if logprob is None else (logprob,)
        self.deltas.append(StreamDelta(self.index, token_ids, text, logprobs, reason, self.error))


@dataclass(frozen=True, slots=True)
class Origin:
    """A checked request as it came in: its number among the caller's prompts, text and ids.

    `seed` is used where the parameters give none.
    """

    index: int
    text: str | None
    ids: list[int]
    params: SamplingParams
    seed: int


def new_request(
    origin: Origin, ends: Ends, tokenizer: TiktokenTokenizer | None, page_tokens: int
) -> Request:
    """A waiting request with room for its longest possible text."""
    params, count = origin.params, len(origin.ids)
    longest = ends.max_model_len
    if params.max_tokens is not None:
        longest = min(longest, count + params.max_tokens)
    tokens = np.empty(longest, dtype=np.int32)
    tokens[:count] = origin.ids
    return Request(
        index=origin.index,
        prompt=origin.text,
        prompt_len=count,
        params=params,
        seed=origin.seed if params.seed is None else params.seed,
        ends=ends,
        tokens=tokens,
        pages=np.zeros(-(-longest // page_tokens), dtype=np.int32),
        detokenizer=None if tokenizer is None else DetokenizeStream(tokenizer),
        stop_text=StopText(params.stop_strings),
        submitted=time.perf_counter(),
        count=count,
    )
