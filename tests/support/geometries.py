"""Small shapes of both members, with everything that makes them different from one another."""

from __future__ import annotations

from dataclasses import replace

from stepfuse.core.config import (
    ActivationGeometry,
    ExpertFormat,
    Geometry,
    KdaGeometry,
    LayerKind,
    MlaGeometry,
    MoeGeometry,
)


def small_k3(expert_format: ExpertFormat = "mxfp4", top_k: int = 3) -> Geometry:
    """K3 in small: KDA with a lower-bound gate, gated MLA with q_lora, AttnRes of block 3, latent
    MoE, SiTU; the last two layers are MLA and layer 0 is KDA and dense.
    """
    kinds: tuple[LayerKind, ...] = ("kda", "kda", "mla", "kda", "kda", "mla", "mla")
    return Geometry(
        member="k3",
        vocab=200,
        hidden=96,
        layer_kinds=kinds,
        dense_layers=tuple(i == 0 for i in range(len(kinds))),
        dense_width=160,
        activation=ActivationGeometry("situ", 4.0, 25.0),
        norm_eps=1e-5,
        attn_res_block=3,
        max_positions=512,
        kda=KdaGeometry(3, 32, 4, 32, None, -5.0),
        mla=MlaGeometry(3, 48, 64, 32, 16, 32, True),
        moe=MoeGeometry(8, top_k, 64, 64, True, 128, 1.0, True, expert_format),
        bos_id=0,
        eos_ids=(1,),
        tensor_prefix="language_model.",
    )


def small_linear() -> Geometry:
    """Kimi-Linear in small: softplus gate of low rank, direct q, plain residuals, SwiGLU, BF16
    experts on the hidden width.
    """
    kinds: tuple[LayerKind, ...] = ("kda", "kda", "kda", "mla", "kda", "mla")
    return Geometry(
        member="kimi_linear",
        vocab=200,
        hidden=96,
        layer_kinds=kinds,
        dense_layers=tuple(i == 0 for i in range(len(kinds))),
        dense_width=160,
        activation=ActivationGeometry("silu", 1.0, 1.0),
        norm_eps=1e-5,
        attn_res_block=None,
        max_positions=512,
        kda=KdaGeometry(3, 32, 4, 32, 32, None),
        mla=MlaGeometry(3, None, 64, 32, 16, 32, False),
        moe=MoeGeometry(8, 2, 48, None, False, 48, 2.446, True, "bf16"),
        bos_id=0,
        eos_ids=(1,),
        tensor_prefix="",
    )


def flat(geometry: Geometry) -> Geometry:
    """The same shape with every expert chosen: no choice a rounding could turn."""
    moe = replace(geometry.moe, top_k=geometry.moe.experts)
    return replace(geometry, moe=moe)
