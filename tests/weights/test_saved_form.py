"""The form transformers saves loads to the same arena as the released one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepfuse.weights.load import LoadOptions, load
from tests.support.files import edit_tensors
from tests.support.saved_form import to_saved_form
from tests.support.tiny import tiny_kimi_linear

QUIET = LoadOptions(quiet=True)


def test_bf16_saved_form_is_the_released_form(tmp_path: Path) -> None:
    """FP32 fields of the released file become BF16 in a BF16 model, so start from such values."""

    def coarse(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(torch.bfloat16).to(tensors[name].dtype)

    path = tiny_kimi_linear(tmp_path)
    edit_tensors(path, coarse)
    released = load(path, QUIET)
    to_saved_form(path, torch.bfloat16)
    saved = load(path, QUIET)
    assert saved.geometry == released.geometry
    assert saved.notices == ()
    assert torch.equal(saved.weights.arena, released.weights.arena)


@pytest.mark.parametrize("exact", [True, False])
def test_fp32_trunk_is_rounded_with_a_notice(tmp_path: Path, exact: bool) -> None:
    path = tiny_kimi_linear(tmp_path)
    released = load(path, QUIET)
    to_saved_form(path, torch.float32)
    if not exact:
        nudge = 2.0**-12  # under half a BF16 step: rounds back

        def shift(tensors: dict[str, Tensor]) -> None:
            for name, tensor in tensors.items():
                if name.endswith("_proj.weight"):
                    tensors[name] = tensor * (1 + nudge)

        edit_tensors(path, shift)
    saved = load(path, QUIET)
    assert torch.equal(saved.weights.arena, released.weights.arena)
    assert len(saved.notices) == 1
    assert "rounded to BF16" in saved.notices[0]
    assert ("; 0 values changed" in saved.notices[0]) == exact


def test_geometry_of_both_forms_agrees(tmp_path: Path) -> None:
    path = tiny_kimi_linear(tmp_path, layers=9, mla_layers=(2, 5, 8))
    released = load(path, QUIET).geometry
    to_saved_form(path, torch.float32)
    assert dataclasses.asdict(load(path, QUIET).geometry) == dataclasses.asdict(released)
