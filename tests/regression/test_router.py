"""Known ways routing and residual mixing go wrong in other engines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepfuse.core.errors import CheckpointError
from stepfuse.model.residual import AttentionResidual
from stepfuse.ops.attn_res import attn_res
from stepfuse.ops.attn_res.ref import attn_res as attn_res_ref
from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.linear import linear, linear_fp32
from stepfuse.ops.router import route
from stepfuse.weights.load import LoadOptions, load
from stepfuse.weights.store import ResidualMix
from tests.support.geometries import small_k3
from tests.support.implementations import each_implementation, running
from tests.support.pack_weights import pack_linear
from tests.support.random_weights import random_tensors
from tests.support.saved_checkpoint import save_released
from tests.support.tolerance import U_FP32, U_GATE, assert_within


@each_implementation
def test_router_input_is_not_rounded(which: Implementation) -> None:
    """Two experts whose logits differ by less than BF16 can hold in the input."""
    weight = torch.zeros(2, 64, dtype=torch.bfloat16)
    weight[0, 0] = weight[1, 1] = 1.0
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 1] = 1.0, 1.0 + 2.0**-12
    with running(which):
        exact = linear_fp32(x, pack_linear(weight))
        blurred = linear(x, pack_linear(weight))
        ids, _ = route(exact, torch.zeros(2), 1, 1.0, True)
    assert exact.tolist() == [[1.0, 1.0 + 2.0**-12]]
    assert blurred.tolist() == [[1.0, 1.0]]
    assert ids.tolist() == [[1]]


@each_implementation
def test_correction_bias_is_fp32_and_only_selects(which: Implementation) -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    bias = torch.tensor([0.0, 2.0**-20, 0.0, 2.0**-21])  # in BF16 sums all four are 0.5
    with running(which):
        ids, weights = route(logits, bias, 2, 2.446, True)
    assert ids.tolist() == [[1, 3]]
    assert weights.tolist() == [[pytest.approx(1.223), pytest.approx(1.223)]]


@each_implementation
def test_biased_scores_below_minus_one(which: Implementation) -> None:
    """An engine that starts its running maximum at -1 finds nobody here."""
    logits = torch.tensor([[-3.0, 1.0, 0.5, -2.0, 2.0]])
    bias = torch.tensor([-10.0, -10.0, -10.0, -10.0, -10.0])
    with running(which):
        ids, weights = route(logits, bias, 3, 1.0, True)
    assert ids.tolist() == [[1, 2, 4]]
    scores = torch.sigmoid(logits.double())[0, [1, 2, 4]]
    assert_within(weights[0], scores / scores.sum(), 4 * U_FP32 + 4 * U_GATE)


@each_implementation
@pytest.mark.parametrize(
    ("logits", "k", "want"),
    [
        ([1.0, 2.0, 2.0, 2.0, 0.0], 2, [1, 2]),  # ties at rank k
        ([2.0, 2.0, 2.0, 2.0, 2.0], 3, [0, 1, 2]),
        ([0.0, -0.0, 0.0, -0.0, -1.0], 2, [0, 1]),  # both zeros are equal
        ([-0.0, 0.0, -0.0, 0.0, -1.0], 2, [0, 1]),
    ],
)
def test_ties_take_the_lower_index(
    which: Implementation, logits: list[float], k: int, want: list[int]
) -> None:
    with running(which):
        ids, _ = route(torch.tensor([logits]), torch.zeros(5), k, 1.0, True)
    assert ids.tolist() == [want]


@each_implementation
def test_signed_zero_scores_tie(which: Implementation) -> None:
    """sigmoid(-200) is 0, so the biased scores are +0 and -0 + 0: equal."""
    with running(which):
        ids, _ = route(
            torch.full((1, 4), -200.0), torch.tensor([-0.0, 0.0, -0.0, 0.0]), 2, 1.0, False
        )
    assert ids.tolist() == [[0, 1]]


@each_implementation
def test_all_minus_infinity_still_gives_k_distinct_experts(which: Implementation) -> None:
    with running(which):
        by_logit, _ = route(torch.full((2, 16), -math.inf), torch.zeros(16), 4, 1.0, False)
        by_bias, _ = route(torch.zeros(2, 16), torch.full((16,), -math.inf), 4, 1.0, False)
        _, weights = route(torch.full((2, 16), -math.inf), torch.zeros(16), 4, 1.0, True)
    assert by_logit.tolist() == [[0, 1, 2, 3]] * 2
    assert by_bias.tolist() == [[0, 1, 2, 3]] * 2
    assert weights.tolist() == [[0.0] * 4] * 2  # 0 / 0 would poison the row


@each_implementation
@pytest.mark.parametrize("alias", [0, 1, 2])
def test_attention_residual_output_does_not_alias_its_sources(
    which: Implementation, alias: int
) -> None:
    """The result is a new tensor: overwriting a source afterwards must not change it, nor may
    the mix change its sources.
    """
    sources = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(5))
    before = sources.clone()
    norm, proj = torch.ones(64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    with running(which):
        out = attn_res(sources, norm, proj, 1e-5)
        alone = attn_res(sources[alias : alias + 1], norm, proj, 1e-5)
    assert torch.equal(sources, before)
    kept, kept_alone = out.clone(), alone.clone()
    sources[alias] = torch.nan
    assert torch.equal(out, kept)
    assert torch.equal(alone, kept_alone)
    assert torch.equal(alone, before[alias])


@each_implementation
def test_scores_are_of_normalised_and_the_mix_of_raw_sources(which: Implementation) -> None:
    """A source scaled by 1000 keeps its score and weighs 1000 times more in the mix."""
    make = torch.Generator().manual_seed(6)
    sources = torch.randn(2, 1, 64, generator=make)
    norm = torch.ones(64, dtype=torch.bfloat16)
    proj = (torch.randn(64, generator=make) / 8).to(torch.bfloat16)
    large = torch.stack([sources[0] * 1000, sources[1]])
    with running(which):
        out = attn_res(large, norm, proj, 1e-9)
    base = attn_res_ref(sources.double(), norm, proj, 1e-12)
    want = base.weights[0, 0] * sources[0, 0].double() * 1000 + base.weights[0, 1] * sources[1, 0]
    assert_within(out[0], want, 1000 * 8 * (64 * U_FP32 + U_GATE))


@each_implementation
def test_snapshot_is_taken_before_attention_and_restarts_the_prefix(which: Implementation) -> None:
    """A block's first layer mixes without its own snapshot, banks the raw prefix, and starts the
    prefix anew from the attention's output.
    """
    make = torch.Generator().manual_seed(7)
    x, a0, f0, a1, f1 = torch.randn(5, 1, 96, generator=make)
    norm = torch.ones(96, dtype=torch.bfloat16)
    mix = ResidualMix(norm, (torch.randn(96, generator=make) / 10).to(torch.bfloat16))
    stream = AttentionResidual(x, small_k3(), 1)

    def mixed(*sources: torch.Tensor) -> torch.Tensor:
        stacked = torch.stack(sources).double()
        return attn_res_ref(stacked, mix.norm, mix.proj, small_k3().norm_eps).out

    bound = 8 * (96 * U_FP32 + U_GATE)
    with running(which):
        assert torch.equal(stream.attention_input(0, mix), x)
        stream.add_attention(a0)
        assert_within(stream.ffn_input(mix), mixed(x, a0), bound)
        stream.add_ffn(f0)
        assert_within(stream.attention_input(1, mix), mixed(x, a0 + f0), bound)
        stream.add_attention(a1)
        assert_within(stream.ffn_input(mix), mixed(x, a0 + f0, a1), bound)
        stream.add_ffn(f1)
        assert_within(stream.output(mix), mixed(x, a0 + f0, a1 + f1), bound)


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_failed_expert_read_is_an_error_never_a_skipped_expert(
    tmp_path: Path, damage: str
) -> None:
    g = small_k3()
    save_released(tmp_path, g, random_tensors(g))
    shard = tmp_path / "model.safetensors"
    if damage == "missing":
        tensors = load_file(shard)
        del tensors["language_model.model.layers.3.block_sparse_moe.experts.5.w2.weight_scale"]
        save_file(tensors, shard)
    else:
        shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        load(tmp_path, LoadOptions(quiet=True))
