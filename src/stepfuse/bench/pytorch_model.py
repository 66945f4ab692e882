"""The model as plain PyTorch, op by op: the peer a user of PyTorch would write.

BF16 `linear` on row-major weights, products of one input stacked; FP32 residual stream, norms and
state; keys and values of MLA expanded once per token and kept, which is cheaper at short context
than absorbing; experts one after the other, each over its rows; the delta rule token by token. All
sequences stand at the same position. Nothing here knows the kernels, packings or caches that this
project runs on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepfuse.bench.pytorch_weights import Experts, PlainLayer, PlainModel
from stepfuse.core.config import KDA_L2_EPS, MLA_LATENT_NORM_EPS, Geometry

BF16 = torch.bfloat16


class PlainCaches:
    """Caches of `sequences` texts of up to `tokens` tokens; `length` tokens are in them."""

    def __init__(self, g: Geometry, sequences: int, tokens: int) -> None:
        self.length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []
        for kind in g.layer_kinds:
            if kind == "kda":
                state = torch.zeros(sequences, g.kda.heads, g.kda.dim, g.kda.dim)
                past = torch.zeros(sequences, g.kda.conv_kernel - 1, 3 * g.kda.width, dtype=BF16)
                self.layers.append((state, past))
            else:
                shape = (sequences, g.mla.heads, tokens)
                keys = torch.zeros(*shape, g.mla.nope + g.mla.rope, dtype=BF16)
                self.layers.append((keys, torch.zeros(*shape, g.mla.v_dim, dtype=BF16)))


class PlainDecoder:
    """Geometry and weights; runs T further tokens of B sequences over PlainCaches."""

    def __init__(self, model: PlainModel) -> None:
        self.model = model
        self.g = model.geometry

    @torch.inference_mode()
    def forward(self, tokens: Tensor, caches: PlainCaches, every_row: bool = True) -> Tensor:
        """tokens int64 [B, T] to logits BF16 [B * T, vocab], or [B, vocab] of the last tokens."""
        x = F.embedding(tokens.reshape(-1), self.model.outer["embed"]).float()
        bank: list[Tensor] = []
        block = self.g.attn_res_block
        for index, layer in enumerate(self.model.layers):
            h = self._norm(self._mix(x, bank, layer.fields, "attn_res"), layer, "input_norm")
            fresh = block is not None and index % block == 0
            if fresh:
                bank.append(x)
            attend = self._kda if self.g.layer_kinds[index] == "kda" else self._mla
            out = attend(h, layer, caches.layers[index], (len(tokens), caches.length))
            x = out.float() if fresh else x + out
            m = self._norm(self._mix(x, bank, layer.fields, "mlp_res"), layer, "post_norm")
            x = x + (self._dense(m, layer) if layer.experts is None else self._moe(m, layer))
        caches.length += tokens.shape[1]
        if not every_row:
            x = x.view(*tokens.shape, -1)[:, -1]
            bank = [b.view(*tokens.shape, -1)[:, -1] for b in bank]
        mixed = self._mix(x, bank, self.model.outer, "output_res")
        final = rms_norm(mixed, self.model.outer["final_norm"], self.g.norm_eps)
        return F.linear(final.to(BF16), self.model.outer["lm_head"])

    def _norm(self, x: Tensor, layer: PlainLayer, name: str) -> Tensor:
        return rms_norm(x, layer.fields[name], self.g.norm_eps)

    def _mix(self, x: Tensor, bank: list[Tensor], fields: dict[str, Tensor], name: str) -> Tensor:
        """Block attention residual: a softmax over normalised scores, of the raw sources."""
        if not bank:
            return x
        sources = torch.stack([*bank, x])
        inverse = torch.rsqrt(sources.square().mean(-1) + self.g.norm_eps)
        scores = (sources @ (fields[f"{name}.norm"] * fields[f"{name}.proj"])) * inverse
        return (scores.softmax(0).unsqueeze(-1) * sources).sum(0)

    def _kda(
        self, x: Tensor, layer: PlainLayer, cache: tuple[Tensor, Tensor], where: tuple[int, int]
    ) -> Tensor:
        g, w, (state, past) = self.g.kda, layer.fields, cache
        parts = layer.attention_in(x.to(BF16))
        rows = (where[0], -1, g.heads, g.dim)
        mixed = torch.cat([parts[name] for name in "qkv"], -1).view(where[0], -1, 3 * g.width)
        q, k, v = convolved(mixed, past, w["attention.conv"]).chunk(3, -1)
        q, k, v = unit(q.view(rows)) * g.dim**-0.5, unit(k.view(rows)), v.view(rows)
        z = F.linear(parts["f_a"], w["attention.f_b"]).float() + w["attention.dt_bias"]
        decay = self._decay(z.view(rows), w["attention.a_log"].exp()).exp()
        beta = torch.sigmoid(parts["b"].float()).view(rows[:3])
        out = recurrent(state, (q, k, v), decay, beta).flatten(0, 1)
        out = rms_norm(out, w["attention.o_norm"], self.g.norm_eps).flatten(1)
        low = parts.get("g_a")
        gate = parts["g"] if low is None else F.linear(low, w["attention.g_b"])
        return F.linear((out * torch.sigmoid(gate.float())).to(BF16), w["attention.o"])

    def _decay(self, z: Tensor, rate: Tensor) -> Tensor:
        """z [..., H, D] and exp(A_log) [H] to log decays."""
        bound = self.g.kda.gate_lower_bound
        rate = rate.unsqueeze(-1)
        return -rate * F.softplus(z) if bound is None else bound * torch.sigmoid(rate * z)

    def _mla(
        self, x: Tensor, layer: PlainLayer, cache: tuple[Tensor, Tensor], where: tuple[int, int]
    ) -> Tensor:
        g, w, (keys, values) = self.g.mla, layer.fields, cache
        parts = layer.attention_in(x.to(BF16))
        sequences, cached = where
        latent, pe = parts["kv_a"].split_with_sizes((g.kv_lora, g.rope), -1)
        latent = rms_norm(latent.float(), w["attention.kv_a_norm"], MLA_LATENT_NORM_EPS)
        both = F.linear(latent.to(BF16), w["attention.w_u"])
        both = both.view(sequences, -1, g.heads, g.nope + g.v_dim).transpose(1, 2)
        end = cached + both.shape[2]
        keys[:, :, cached:end, : g.nope] = both[..., : g.nope]
        keys[:, :, cached:end, g.nope :] = pe.view(sequences, 1, -1, g.rope)
        values[:, :, cached:end] = both[..., g.nope :]
        q = self._queries(parts, w).view(sequences, -1, g.heads, g.nope + g.rope).transpose(1, 2)
        mask = None if q.shape[2] == 1 else causal(cached, end)
        scale = (g.nope + g.rope) ** -0.5
        seen = (keys[:, :, :end], values[:, :, :end])
        out = F.scaled_dot_product_attention(q, *seen, attn_mask=mask, scale=scale)
        out = out.transpose(1, 2).reshape(len(x), -1)
        if g.output_gate:
            out = out * torch.sigmoid(parts["g"])
        return F.linear(out, w["attention.o"])

    def _queries(self, parts: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        if "q_a" not in parts:
            return parts["q_b"]
        low = rms_norm(parts["q_a"].float(), w["attention.q_a_norm"], MLA_LATENT_NORM_EPS)
        return F.linear(low.to(BF16), w["attention.q_b"])

    def _dense(self, x: Tensor, layer: PlainLayer) -> Tensor:
        hidden = self._activate(F.linear(x.to(BF16), layer.fields["ffn.gate_up"]))
        return F.linear(hidden, layer.fields["ffn.down"])

    def _moe(self, x: Tensor, layer: PlainLayer) -> Tensor:
        assert layer.experts is not None
        assert layer.ffn_in is not None
        w, moe, low = layer.fields, self.g.moe, x.to(BF16)
        scores = torch.sigmoid(F.linear(x, w["ffn.router"]))
        ids = torch.topk(scores + w["ffn.bias"], moe.top_k, sorted=False).indices
        weights = scores.gather(1, ids)
        if moe.renormalize:
            weights = weights / weights.sum(1, keepdim=True)
        parts = layer.ffn_in(low)
        source = parts.get("latent_down", low)
        y = self._routed(source, ids, weights * moe.routed_scaling, layer.experts)
        if moe.latent_norm:
            y = rms_norm(y, w["ffn.latent_norm"], self.g.norm_eps)
        if moe.latent is not None:
            y = F.linear(y.to(BF16), w["ffn.latent_up"]).float()
        if "shared_gate_up" not in parts:
            return y
        return y + F.linear(self._activate(parts["shared_gate_up"]), w["ffn.shared_down"])

    def _routed(self, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """x BF16 [R, in] to the weighted sums FP32 [R, in]; rows are grouped by expert."""
        order = ids.flatten().argsort()
        rows = order // ids.shape[1]
        counts = torch.bincount(ids.flatten(), minlength=self.g.moe.experts).tolist()
        grouped, scale = x[rows], weights.flatten()[order].unsqueeze(1)
        parts, start = [], 0
        for expert, count in enumerate(counts):
            if count:
                gate_up, down = experts.of(expert)
                hidden = self._activate(F.linear(grouped[start : start + count], gate_up))
                parts.append(F.linear(hidden, down))
                start += count
        out = torch.zeros(x.shape, dtype=torch.float32)
        return out.index_add_(0, rows, torch.cat(parts).float() * scale)

    def _activate(self, both: Tensor) -> Tensor:
        """SiTU or SwiGLU of BF16 [R, 2 * width] to BF16 [R, width], computed in FP32."""
        a = self.g.activation
        gate, up = both.float().chunk(2, -1)
        if a.kind == "silu":
            return (F.silu(gate) * up).to(BF16)
        soft = torch.tanh(gate / a.beta) * torch.sigmoid(gate) * (a.beta * a.linear_beta)
        return (soft * torch.tanh(up / a.linear_beta)).to(BF16)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + KDA_L2_EPS)


def causal(cached: int, end: int) -> Tensor:
    """True where a row of [cached, end) sees a token of [0, end)."""
    return torch.arange(end) <= torch.arange(cached, end).unsqueeze(1)


def convolved(x: Tensor, past: Tensor, taps: Tensor) -> Tensor:
    """SiLU of the causal convolution of BF16 [B, T, C] by [4, C], FP32; `past` moves forward."""
    both = torch.cat([past, x], 1)
    past.copy_(both[:, -past.shape[1] :])
    both = both.float()
    tokens = x.shape[1]
    return F.silu(
        sum((both[:, j : j + tokens] * tap for j, tap in enumerate(taps)), torch.zeros(()))
    )


def recurrent(state: Tensor, qkv: tuple[Tensor, ...], decay: Tensor, beta: Tensor) -> Tensor:
    """The delta rule token by token, all sequences and heads at once: qkv and decay [B, T, H, D],
    beta [B, T, H]; state [B, H, D, D] moves forward; returns [B, T, H, D].
    """
    q, k, v = qkv
    flat = state.view(-1, *state.shape[2:])
    shape = (len(flat), 1, flat.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        key = k[:, t].reshape(shape)
        flat.mul_(decay[:, t].reshape(shape).transpose(1, 2))
        error = v[:, t].reshape(shape) - torch.bmm(key, flat)
        scaled = error * beta[:, t].reshape(-1, 1, 1)
        flat.baddbmm_(key.transpose(1, 2), scaled)
        outputs.append(torch.bmm(q[:, t].reshape(shape), flat).view(v[:, t].shape))
    return torch.stack(outputs, 1)
