from __future__ import annotations

import math
from typing import Any

import pytest

from stepfuse import SamplingParams, StepfuseError
from stepfuse.core.errors import RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", True),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 3),
        ("stop", [3]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 7),
        ("stop_token_ids", "7"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, StepfuseError)


def test_limits_are_allowed_and_normalised() -> None:
    params = SamplingParams(temperature=0, top_p=1, top_k=0, min_p=1, seed=2**63 - 1, logprobs=20)
    assert params.stop_strings == ()
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"], stop_token_ids=[1]).stop_token_ids == (1,)
    assert SamplingParams(max_tokens=None).max_tokens is None
    assert hash(SamplingParams(stop=["x"])) == hash(SamplingParams(stop=("x",)))
