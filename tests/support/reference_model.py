"""The whole model in plain FP64, token by token, from tensors under the released names.

The judge of every logit: attention is not absorbed, experts are called one by one, nothing is
packed. With `rounded=True` it follows the kernels' rounding contract instead (docs/numerics.md), to
tell what rounding costs from what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepfuse.core.config import FP4_GROUP, MLA_LATENT_NORM_EPS, Geometry
from stepfuse.ops.attn_res.ref import attn_res
from stepfuse.ops.kda import KdaInputs, KdaParams
from stepfuse.ops.kda.ref import KdaState, kda
from stepfuse.ops.linear.ref import activate, rounded
from stepfuse.ops.mla.ref import CacheRounding, cached
from stepfuse.ops.norm.ref import rms_norm
from stepfuse.ops.router.ref import route

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(slots=True)
class ReferenceCache:
    """Per layer: a KDA state, or the latents and pe seen so far."""

    state: dict[int, KdaState] = field(default_factory=dict)
    latent: dict[int, list[Tensor]] = field(default_factory=dict)
    pe: dict[int, list[Tensor]] = field(default_factory=dict)


class ReferenceModel:
    """`tensors`: released names without the member's prefix. `kv`: what the latent cache rounds."""

    def __init__(
        self,
        geometry: Geometry,
        tensors: Mapping[str, Tensor],
        rounded: bool = False,
        kv: CacheRounding = "none",
    ) -> None:
        self.g = geometry
        self.tensors = tensors
        self.rounds = rounded
        self.kv: CacheRounding = kv
        self._memo: dict[str, Tensor] = {}

    def logits(self, tokens: list[int], cache: ReferenceCache | None = None) -> Tensor:
        """FP64 [T, vocab] after each token; `cache` carries on from earlier tokens."""
        cache = cache or ReferenceCache()
        return torch.stack([self._token(token, cache) for token in tokens])

    def weight(self, name: str) -> Tensor:
        """FP64 weight `name` (up to `.weight`), MXFP4 decoded."""
        if name not in self._memo:
            self._memo[name] = self._read(name)
        return self._memo[name]

    def _read(self, name: str) -> Tensor:
        if f"{name}.weight_packed" not in self.tensors:
            found = self.tensors.get(f"{name}.weight")
            return (self.tensors[name] if found is None else found).double()
        packed = self.tensors[f"{name}.weight_packed"]
        nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).long()
        values = torch.tensor(_E2M1 + tuple(-x for x in _E2M1), dtype=torch.float64)[nibbles]
        scales = 2.0 ** (self.tensors[f"{name}.weight_scale"].double() - 127)
        return values * scales.repeat_interleave(FP4_GROUP, dim=1)

    def _product(self, x: Tensor, name: str) -> Tensor:
        return self.weight(name) @ (rounded(x) if self.rounds else x)

    def _norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        return rms_norm(x, self.weight(name), self.g.norm_eps if eps is None else eps)

    def _token(self, token: int, cache: ReferenceCache) -> Tensor:
        x = self.tensors["model.embed_tokens.weight"][token].double()
        bank: list[Tensor] = []
        for layer in range(self.g.layers):
            x = self._layer(layer, x, bank, cache)
        h = self._mix(x, bank, "model.output_attn_res")
        return self._product(self._norm(h, "model.norm"), "lm_head")

    def _mix(self, prefix: Tensor, bank: list[Tensor], stem: str) -> Tensor:
        if self.g.attn_res_block is None or not bank:
            return prefix
        sources = torch.stack([*bank, prefix]).unsqueeze(1)
        proj = self.weight(f"{stem}_proj").reshape(-1)
        return attn_res(sources, self.weight(f"{stem}_norm"), proj, self.g.norm_eps).out[0]

    def _layer(self, layer: int, x: Tensor, bank: list[Tensor], cache: ReferenceCache) -> Tensor:
        name = f"model.layers.{layer}"
        h = self._norm(self._mix(x, bank, f"{name}.self_attention_res"), f"{name}.input_layernorm")
        block = self.g.attn_res_block
        fresh = block is not None and layer % block == 0
        if fresh:
            bank.append(x)
        run = self._kda if self.g.layer_kinds[layer] == "kda" else self._mla
        a = run(layer, h, cache)
        x = a if fresh else x + a
        m = self._mix(x, bank, f"{name}.mlp_res")
        m = self._norm(m, f"{name}.post_attention_layernorm")
        if self.g.dense_layers[layer]:
            return x + self._mlp(m, f"{name}.mlp")
        return x + self._moe(m, f"{name}.block_sparse_moe")

    def _kda(self, layer: int, x: Tensor, cache: ReferenceCache) -> Tensor:
        name = f"model.layers.{layer}.self_attn"

        def project(part: str) -> Tensor:
            return self._product(x, f"{name}.{part}_proj")

        low = self.g.kda.gate_rank is not None
        gate = self._product(project("g_a"), f"{name}.g_b_proj") if low else project("g")
        decay = self._product(project("f_a"), f"{name}.f_b_proj")
        values = (project("q"), project("k"), project("v"), decay, project("b"), gate)
        inputs = KdaInputs(*(v.unsqueeze(0) for v in values))
        params = self._kda_params(name)
        state = cache.state.setdefault(layer, KdaState.empty(params, torch.float64))
        out = kda(inputs, params, state, round_window=self.rounds).out[0]
        return self._product(out, f"{name}.o_proj")

    def _kda_params(self, name: str) -> KdaParams:
        width = self.g.kda.width
        taps = [self.weight(f"{name}.{p}_conv1d").reshape(width, -1).T for p in "qkv"]
        return KdaParams(
            conv=torch.stack(taps),
            a_log=self.weight(f"{name}.A_log").reshape(-1)[: self.g.kda.heads],
            dt_bias=self.weight(f"{name}.dt_bias"),
            o_norm=self.weight(f"{name}.o_norm"),
            geometry=self.g.kda,
            norm_eps=self.g.norm_eps,
        )

    def _mla(self, layer: int, x: Tensor, cache: ReferenceCache) -> Tensor:
        name = f"model.layers.{layer}.self_attn"
        mla = self.g.mla
        both = self._product(x, f"{name}.kv_a_proj_with_mqa")
        latent = self._norm(both[: mla.kv_lora], f"{name}.kv_a_layernorm", MLA_LATENT_NORM_EPS)
        cache.latent.setdefault(layer, []).append(cached(latent, self.kv))
        cache.pe.setdefault(layer, []).append(cached(both[mla.kv_lora :], self.kv))
        latents, pes = torch.stack(cache.latent[layer]), torch.stack(cache.pe[layer])
        if mla.q_lora is None:
            q = self._product(x, f"{name}.q_proj")
        else:
            low = self._product(x, f"{name}.q_a_proj")
            low = self._norm(low, f"{name}.q_a_layernorm", MLA_LATENT_NORM_EPS)
            q = self._product(low, f"{name}.q_b_proj")
        q = q.view(mla.heads, -1)
        kv_b = self.weight(f"{name}.kv_b_proj").view(mla.heads, -1, mla.kv_lora)
        out = torch.cat([self._head(q[h], kv_b[h], latents, pes) for h in range(mla.heads)])
        if mla.output_gate:
            out = out * torch.sigmoid(self._product(x, f"{name}.g_proj"))
        return self._product(out, f"{name}.o_proj")

    def _head(self, q: Tensor, kv_b: Tensor, latents: Tensor, pes: Tensor) -> Tensor:
        """One head's output [v]: keys and values expanded, or absorbed where rounding is asked."""
        mla = self.g.mla
        q_nope, q_pe = q[: mla.nope], q[mla.nope :]
        w_uk, w_uv = kv_b[: mla.nope], kv_b[mla.nope :]
        scale = (mla.nope + mla.rope) ** -0.5
        if self.rounds:
            scores = latents @ (w_uk.T @ rounded(q_nope)) + pes @ q_pe
            return w_uv @ rounded(torch.softmax(scores * scale, 0) @ latents)
        scores = (latents @ w_uk.T) @ q_nope + pes @ q_pe
        return torch.softmax(scores * scale, 0) @ (latents @ w_uv.T)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = (self._product(x, f"{name}.{part}_proj") for part in ("gate", "up"))
        return self._product(activate(gate, up, self.g.activation), f"{name}.down_proj")

    def _moe(self, x: Tensor, name: str) -> Tensor:
        moe = self.g.moe
        logits = self.weight(f"{name}.gate") @ x
        bias = self.weight(f"{name}.gate.e_score_correction_bias")
        chosen = route(logits[None], bias, moe.top_k, moe.routed_scaling, moe.renormalize)
        u = x if moe.latent is None else self._product(x, f"{name}.routed_expert_down_proj")
        y = torch.zeros_like(u)
        for e, scale in zip(chosen.ids[0].tolist(), chosen.weights[0], strict=True):
            expert = f"{name}.experts.{e}"
            gate, up = self._product(u, f"{expert}.w1"), self._product(u, f"{expert}.w3")
            hidden = activate(gate, up, self.g.activation)
            y = y + scale * self._product(hidden, f"{expert}.w2")
        if moe.latent_norm and moe.latent is not None:
            y = self._norm(y, f"{name}.routed_expert_norm")
        if moe.latent is not None:
            y = self._product(y, f"{name}.routed_expert_up_proj")
        return y + self._mlp(x, f"{name}.shared_experts") if moe.shared_width else y
