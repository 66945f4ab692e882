"""What a caller asks for and gets back: sampling parameters, outputs, stream deltas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepfuse.core.errors import RequestError

FinishReason = Literal["stop", "length", "error", "abort"]

# Alternatives per token a request may ask for; each costs a partial sort of the vocabulary.
LOGPROBS_MAX = 20
SEED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens of one request are chosen and when it ends.

    `temperature` 0 is greedy and ignores top_p, top_k and min_p; `top_k` 0 keeps all tokens.
    `seed`: the same seed and prompt give the same tokens whatever else is in the batch; None draws
    a fresh one. `max_tokens` None: up to the engine's max_model_len. `stop`: text that ends the
    request and is cut off. `logprobs`: that many alternatives per token (0: the chosen one only).
    Raises RequestError naming the value and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise RequestError("top_p is 0: it must be above 0; use temperature=0 for greedy")
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_integer("top_k", self.top_k, 0, None)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, SEED_MAX)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, None)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, LOGPROBS_MAX)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_ids(self.stop_token_ids))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it was normalised."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a token under the raw logits, and the `top` alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request.

    `token_ids` holds every generated id, a closing eos included; `text` is what they spell without
    the closing eos or stop string, None where the checkpoint has no tokenizer. `error` says why
    `finish_reason` is "error". `ttft_s`: submission to first token; `e2e_s`: to the last.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None
    error: str | None
    ttft_s: float | None
    e2e_s: float


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one step added to the prompt with number `index`; the last one has `finish_reason`.

    The texts of a request's deltas joined are its RequestOutput.text.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    error: str | None = None


def _check_number(name: str, value: object, low: float, high: float) -> None:
    bound = f"between {low:g} and {high:g}" if math.isfinite(high) else f"finite and >= {low:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} is {value!r}: it must be a number {bound}")
    if not math.isfinite(value) or value < low or value > high:
        raise RequestError(f"{name} is {value!r}: it must be {bound}")


def _check_integer(name: str, value: object, low: int, high: int | None) -> None:
    bound = f">= {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}: it must be an integer {bound}")
    if value < low or (high is not None and value > high):
        raise RequestError(f"{name} is {value}: it must be {bound}")


def _stop_strings(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence):
        raise RequestError(f"stop is {stop!r}: it must be a string or a list of strings")
    for text in stops:
        if not isinstance(text, str) or not text:
            raise RequestError(f"stop holds {text!r}: every stop must be a non-empty string")
    return tuple(stops)


def _stop_ids(ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise RequestError(f"stop_token_ids is {ids!r}: it must be a list of token ids")
    for token in ids:
        _check_integer("stop_token_ids entry", token, 0, None)
    return tuple(ids)
