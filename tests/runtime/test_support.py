"""Every reason is found, all of them at once, and real geometries have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepfuse.core.config import Geometry, LayerKind
from stepfuse.core.errors import StepfuseError, UnsupportedError
from stepfuse.runtime.support import MAX_ROWS, check_specialized, require_specialized
from tests.support.geometries import small_k3, small_linear


def real_k3() -> Geometry:
    """moonshotai/Kimi-K3's text model, from its config."""
    kinds: tuple[LayerKind, ...] = tuple(
        "mla" if i % 4 == 3 or i == 92 else "kda" for i in range(93)
    )
    g = small_k3()
    return replace(
        g,
        vocab=163840,
        hidden=7168,
        layer_kinds=kinds,
        dense_layers=tuple(i == 0 for i in range(93)),
        dense_width=33792,
        attn_res_block=12,
        max_positions=1 << 20,
        kda=replace(g.kda, heads=96, dim=128, decay_rank=128),
        mla=replace(g.mla, heads=96, q_lora=1536, kv_lora=512, nope=128, rope=64, v_dim=128),
        moe=replace(
            g.moe, experts=896, top_k=16, expert_width=3072, latent=3584, shared_width=6144
        ),
    )


@pytest.mark.parametrize("geometry", [real_k3(), small_k3(), small_k3("bf16"), small_linear()])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("rows", [1, 8, MAX_ROWS])
def test_what_can_be_served(geometry: Geometry, kv: str, rows: int) -> None:
    assert check_specialized(geometry, kv, "scalar", rows) == []
    require_specialized(geometry, kv, "scalar", rows)


def kda(**changes: Any) -> Geometry:
    g = small_k3()
    return replace(g, kda=replace(g.kda, **changes))


def mla(**changes: Any) -> Geometry:
    g = small_k3()
    return replace(g, mla=replace(g.mla, **changes))


def moe(**changes: Any) -> Geometry:
    g = small_k3()
    return replace(g, moe=replace(g.moe, **changes))


def top(**changes: Any) -> Geometry:
    return replace(small_k3(), **changes)


def act(**changes: Any) -> Geometry:
    g = small_k3()
    return replace(g, activation=replace(g.activation, **changes))


REFUSED = {
    "conv kernel 3": kda(conv_kernel=3),
    "kda_head_dim 48": kda(dim=48),
    "kda_head_dim 0": kda(dim=0),
    "kda_heads 0": kda(heads=0),
    "kda_decay_rank 33": kda(decay_rank=33),
    "kda_gate_rank 31": kda(gate_rank=31),
    "gate_lower_bound 0.5": kda(gate_lower_bound=0.5),
    "gate_lower_bound nan": kda(gate_lower_bound=float("nan")),
    "q_lora_rank 33": mla(q_lora=33),
    "kv_lora_rank 40": mla(kv_lora=40),
    "qk_nope_head_dim 31": mla(nope=31),
    "qk_rope_head_dim 0": mla(rope=0),
    "v_head_dim 31": mla(v_dim=31),
    "is above 2048": mla(kv_lora=2048),
    "top_k 9": moe(top_k=9),
    "top_k 0": moe(top_k=0),
    "expert_width 48": moe(expert_width=48),
    "expert_input_width 72": moe(latent=72),
    "shared_width 33": moe(shared_width=33),
    "expert format 'int4'": moe(expert_format="int4"),
    "hidden 97": top(hidden=97),
    "vocab 0": top(vocab=0),
    "dense_width 161": top(dense_width=161),
    "attn_res_block_size 0": top(attn_res_block=0),
    "0 layers": top(layer_kinds=(), dense_layers=()),
    "6 FFN kinds": top(dense_layers=(True,) * 6),
    "activation 'gelu'": act(kind="gelu"),
    "situ betas 0.0": act(beta=0.0),
    "layer kinds ['mamba']": top(layer_kinds=("kda",) * 6 + ("mamba",)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_each_reason_is_named(text: str) -> None:
    reasons = check_specialized(REFUSED[text], "bf16", "scalar", 8)
    assert len(reasons) == 1, reasons
    assert text in reasons[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fp16", "scalar", 8), "kv_cache_dtype 'fp16'"),
        (("bf16", None, 8), "native core is not built"),
        (("bf16", "scalar", 0), "max_rows 0"),
        (("bf16", "scalar", 65), "max_rows 65"),
    ],
)
def test_each_setting_is_named(arguments: tuple[str, str | None, int], text: str) -> None:
    reasons = check_specialized(small_k3(), *arguments)
    assert len(reasons) == 1
    assert text in reasons[0]


def test_all_reasons_come_at_once() -> None:
    broken = replace(kda(conv_kernel=3, dim=48), hidden=97, mla=replace(small_k3().mla, v_dim=31))
    reasons = check_specialized(broken, "fp16", None, 0)
    assert len(reasons) == 7
    with pytest.raises(UnsupportedError) as caught:
        require_specialized(broken, "fp16", None, 0)
    assert caught.value.reasons == reasons
    assert isinstance(caught.value, StepfuseError)
    assert all(reason in str(caught.value) for reason in reasons)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: replace(g, layer_kinds=("mla",) * 7, kda=replace(g.kda, dim=48)),
        lambda g: replace(g, layer_kinds=("kda",) * 7, mla=replace(g.mla, kv_lora=40)),
        lambda g: replace(g, dense_layers=(True,) * 7, moe=replace(g.moe, expert_width=33)),
        lambda g: replace(g, dense_layers=(False,) * 7, dense_width=161),
    ],
)
def test_parts_no_layer_uses_do_not_matter(change: Callable[[Geometry], Geometry]) -> None:
    assert check_specialized(change(small_k3()), "bf16", "scalar", 8) == []
