"""Prompts and parameters as callers give them, checked, and made into requests."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from stepfuse.core.errors import RequestError
from stepfuse.engine.parts import Parts
from stepfuse.engine.request import SEED_MAX, SamplingParams
from stepfuse.engine.sequence import Ends, Origin, Request, new_request

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = Prompt | Sequence[Prompt]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
Checked: TypeAlias = tuple[str | None, list[int]]


def check_prompts(prompts: Prompts, parts: Parts, room: int = 1) -> list[Checked]:
    """Text (if any) and ids of every prompt; each must leave `room` tokens below max_model_len.

    Raises RequestError on an empty prompt, one that is too long, ids outside the vocabulary, and
    text where the checkpoint has no tokenizer.
    """
    return [_check_prompt(prompt, parts, room) for prompt in _as_list(prompts)]


def check_params(params: Params, count: int) -> list[SamplingParams]:
    """One SamplingParams per prompt."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise RequestError(
            f"sampling_params is {params!r}: it must be one SamplingParams, or one per prompt"
        )
    if len(params) != count:
        raise RequestError(
            f"{len(params)} sampling_params for {count} prompts: give one, or one per prompt"
        )
    return list(params)


def make_requests(
    prompts: Prompts,
    sampling_params: Params,
    parts: Parts,
) -> list[Request]:
    """Waiting requests, numbered in order; none is made unless all are right."""
    checked = check_prompts(prompts, parts)
    params = check_params(sampling_params, len(checked))
    ends = Ends(parts.eos_ids, parts.max_model_len)
    origins = (
        Origin(i, text, ids, wanted, secrets.randbelow(SEED_MAX))
        for i, ((text, ids), wanted) in enumerate(zip(checked, params, strict=True))
    )
    page_tokens = parts.pool.page_tokens
    return [new_request(origin, ends, parts.tokenizer, page_tokens) for origin in origins]


def _as_list(prompts: Prompts) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    try:
        items = list(prompts)
    except TypeError:
        raise RequestError(
            f"prompts is {prompts!r}: give text, token ids or a list of them"
        ) from None
    if not items:
        raise RequestError("no prompt: give at least one text or one list of token ids")
    if any(_is_integer(item) for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def _check_prompt(prompt: Prompt, parts: Parts, room: int) -> Checked:
    if isinstance(prompt, str):
        if parts.tokenizer is None:
            raise RequestError(
                f"{parts.facts.model} has no tokenizer files, so it takes token ids only: give a "
                "list of ids instead of text"
            )
        text, ids = prompt, parts.tokenizer.encode_prompt(prompt)
    else:
        text, ids = None, _token_ids(prompt)
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    outside = next((i for i in ids if not 0 <= i < parts.vocab), None)
    if outside is not None:
        raise RequestError(
            f"token id {outside} is outside the model's vocabulary 0..{parts.vocab - 1}"
        )
    longest = parts.max_model_len - room
    if len(ids) > longest:
        raise RequestError(
            f"the prompt has {len(ids)} tokens, but at most {longest} fit max_model_len="
            f"{parts.max_model_len}: shorten it or raise max_model_len"
        )
    return text, ids


def _token_ids(prompt: Sequence[int]) -> list[int]:
    if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__"):
        raise RequestError(f"the prompt is {prompt!r}: it must be text or a list of token ids")
    ids = list(prompt)
    for token in ids:
        if not _is_integer(token):
            raise RequestError(f"the prompt holds {token!r}: token ids must be integers")
    return [operator.index(token) for token in ids]


def _is_integer(value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
