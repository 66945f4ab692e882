"""The model's shape: typed, validated, free of torch and of I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Member = Literal["k3", "kimi_linear"]
LayerKind = Literal["kda", "mla"]
ExpertFormat = Literal["mxfp4", "bf16"]


@dataclass(frozen=True, slots=True)
class KdaGeometry:
    """Kimi Delta Attention: `heads` states of [dim, dim]; `gate_rank` None means full-rank g."""

    heads: int
    dim: int
    conv_kernel: int
    decay_rank: int
    gate_rank: int | None
    gate_lower_bound: float | None

    @property
    def width(self) -> int:
        return self.heads * self.dim


@dataclass(frozen=True, slots=True)
class MlaGeometry:
    """Latent attention without rotation; `q_lora` None means a direct q_proj."""

    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    output_gate: bool

    @property
    def cache_dim(self) -> int:
        """Numbers cached per token and layer (latent + pe)."""
        return self.kv_lora + self.rope


@dataclass(frozen=True, slots=True)
class MoeGeometry:
    """Routed experts of `expert_width` on `latent` (None: the hidden width) plus one shared MLP."""

    experts: int
    top_k: int
    expert_width: int
    latent: int | None
    latent_norm: bool
    shared_width: int
    routed_scaling: float
    renormalize: bool
    expert_format: ExpertFormat


@dataclass(frozen=True, slots=True)
class ActivationGeometry:
    """`situ` with its two betas, or `silu` (SwiGLU) where they are unused (1.0)."""

    kind: Literal["situ", "silu"]
    beta: float
    linear_beta: float


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model's shape. Layer indices are 0-based here; the files' lists are 1-based."""

    member: Member
    vocab: int
    hidden: int
    layer_kinds: tuple[LayerKind, ...]
    dense_layers: tuple[bool, ...]
    dense_width: int
    activation: ActivationGeometry
    norm_eps: float
    attn_res_block: int | None
    max_positions: int
    kda: KdaGeometry
    mla: MlaGeometry
    moe: MoeGeometry
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tensor_prefix: str

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def kda_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "kda")

    @property
    def mla_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "mla")


# Latent norms of MLA use this in the reference model, not rms_norm_eps.
MLA_LATENT_NORM_EPS = 1e-6
# Added under the square root when q and k of KDA are L2-normalised.
KDA_L2_EPS = 1e-6
# Output rows of a packed weight tile, and half of it: the gate rows of a gate/up tile.
TILE_ROWS = 32
# Columns that share one MXFP4 scale.
FP4_GROUP = 32
