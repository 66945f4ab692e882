"""What may cross into the native core, and its level."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from stepfuse.core.errors import NativeError
from stepfuse.ops.views import Span
from tests.support.levels import LEVELS, native


def test_levels_are_known_and_the_best_one_runs() -> None:
    names = native.levels()
    assert names[0] == "scalar"
    assert set(names) <= set(LEVELS)
    if "STEPFUSE_LEVEL" not in os.environ:
        assert native.level() == names[-1]


@pytest.mark.parametrize("name", ["avx9", "", "SCALAR"])
def test_an_unknown_level_is_refused(name: str) -> None:
    before = native.level()
    with pytest.raises(NativeError, match="unknown"):
        native.set_level(name)
    assert native.level() == before


def test_a_level_this_machine_lacks_is_refused() -> None:
    missing = [name for name in LEVELS if name not in native.levels()]
    if not missing:
        pytest.skip("this machine runs every level")
    with pytest.raises(NativeError, match="cannot run on this processor"):
        native.set_level(missing[0])


def test_the_variable_forces_the_level() -> None:
    code = "from stepfuse.ops import native; print(native.level())"
    environment = os.environ | {"STEPFUSE_LEVEL": "scalar"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "scalar"


@pytest.mark.parametrize("bad", [torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4).T[1:]])
def test_other_tensors_are_refused_by_name(bad: torch.Tensor) -> None:
    with pytest.raises(NativeError, match=r"gate: .*contiguous torch\.float32"):
        native.floats(bad, "gate")


def test_page_tables_hold_what_the_spans_need() -> None:
    pages = [np.array(p, np.int32) for p in ([5, 6, 7], [9], [])]
    spans = [Span(0, 2, 0, 3, pages[0]), Span(2, 1, 1, 0, pages[1]), Span(3, 0, 2, 9, pages[2])]
    assert native.page_table(spans, 4).tolist() == [[5, 6], [9, 0]]
    assert native.span_rows(spans).tolist() == [[0, 2, 0, 3], [2, 1, 1, 0]]
    with pytest.raises(NativeError, match="slot 1: 1 pages for 6 tokens; 2 are needed"):
        native.page_table([Span(0, 1, 1, 5, pages[1])], 4)
