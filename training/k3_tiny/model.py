"""K3 in PyTorch for training: whole sequences, FP32, modules named as the checkpoint names them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from training.k3_tiny.geometry import Geometry
from training.k3_tiny.kda import delta_chunked
from training.k3_tiny.moe import Mlp, Moe
from training.k3_tiny.norm import RmsNorm, mix

LATENT_EPS = 1e-6  # q_a_layernorm and kv_a_layernorm do not follow rms_norm_eps
L2_EPS = 1e-6
# Where each head's convolutions start: how many tokens back they look. See `_shift`.
QUERY_LAGS, KEY_LAGS = (1, 0), (2, 1)
OUT, HEAD = 0.03, 0.05  # starting size of what a layer adds, and of the head next to the embedding


class Conv(nn.Module):
    """Causal depthwise convolution over time, weight [C, 1, K]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = self.weight.shape[-1]
        padded = F.pad(x, (0, 0, width - 1, 0))
        taps = self.weight[:, 0].T
        out = padded[:, : x.shape[1]] * taps[0]
        for n in range(1, width):
            out = torch.addcmul(out, padded[:, n : n + x.shape[1]], taps[n])
        return F.silu(out)


class Kda(nn.Module):
    """Kimi Delta Attention with the bounded gate and a full-rank output gate."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads, d = shape.hidden, shape.heads, shape.head_dim
        wide = heads * d
        self.q_proj = nn.Linear(hidden, wide, bias=False)
        self.k_proj = nn.Linear(hidden, wide, bias=False)
        self.v_proj = nn.Linear(hidden, wide, bias=False)
        self.q_conv1d = Conv(wide, shape.conv)
        self.k_conv1d = Conv(wide, shape.conv)
        self.v_conv1d = Conv(wide, shape.conv)
        self.f_a_proj = nn.Linear(hidden, d, bias=False)
        self.f_b_proj = nn.Linear(d, wide, bias=False)
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(wide))
        self.g_proj = nn.Linear(hidden, wide, bias=False)
        self.o_norm = RmsNorm(d, eps=shape.eps)
        self.o_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        heads, d = self.shape.heads, self.shape.head_dim

        def by_head(y: torch.Tensor) -> torch.Tensor:
            return y.view(b, t, heads, -1).transpose(1, 2).reshape(b * heads, t, -1)

        q = by_head(self.q_conv1d(self.q_proj(x)))
        k = by_head(self.k_conv1d(self.k_proj(x)))
        v = by_head(self.v_conv1d(self.v_proj(x)))
        q = q * ((q * q).sum(-1, keepdim=True) + L2_EPS).rsqrt() * d**-0.5
        k = k * ((k * k).sum(-1, keepdim=True) + L2_EPS).rsqrt()
        z = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).view(b, t, heads, d)
        g = self.shape.gate_lower_bound * torch.sigmoid(self.A_log.exp()[:, None] * z)
        beta = self.b_proj(x).sigmoid().transpose(1, 2).reshape(b * heads, t)
        o = delta_chunked(q, k, v, by_head(g), beta)
        o = o.view(b, heads, t, d).transpose(1, 2)
        o = self.o_norm(o).reshape(b, t, -1) * self.g_proj(x).sigmoid()
        out: torch.Tensor = self.o_proj(o)
        return out


class Mla(nn.Module):
    """Latent attention without rotation, with an output gate."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads = shape.hidden, shape.heads
        self.q_a_proj = nn.Linear(hidden, shape.q_lora, bias=False)
        self.q_a_layernorm = RmsNorm(shape.q_lora, eps=LATENT_EPS)
        self.q_b_proj = nn.Linear(shape.q_lora, heads * (shape.nope + shape.rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, shape.kv_lora + shape.rope, bias=False)
        self.kv_a_layernorm = RmsNorm(shape.kv_lora, eps=LATENT_EPS)
        self.kv_b_proj = nn.Linear(shape.kv_lora, heads * (shape.nope + shape.v_dim), bias=False)
        self.g_proj = nn.Linear(hidden, heads * shape.v_dim, bias=False)
        self.o_proj = nn.Linear(heads * shape.v_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        s = self.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(b, t, s.heads, -1).transpose(1, 2)
        latent, pe = self.kv_a_proj_with_mqa(x).split([s.kv_lora, s.rope], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, s.heads, -1).transpose(1, 2)
        nope, v = kv.split([s.nope, s.v_dim], dim=-1)
        k = torch.cat([nope, pe.unsqueeze(1).expand(-1, s.heads, -1, -1)], dim=-1)
        v = F.pad(v, (0, k.shape[-1] - s.v_dim))  # equal widths take the fused kernel
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : s.v_dim]
        o = o.transpose(1, 2).reshape(b, t, -1) * self.g_proj(x).sigmoid()
        out: torch.Tensor = self.o_proj(o)
        return out


class Layer(nn.Module):
    """One decoder layer with its two attention-residual mixes."""

    def __init__(self, shape: Geometry, index: int) -> None:
        super().__init__()
        self.snapshot = index % shape.block == 0
        self.self_attn = Mla(shape) if index in shape.full_attention else Kda(shape)
        self.input_layernorm = RmsNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, eps=shape.eps)
        self.self_attention_res_norm = RmsNorm(shape.hidden, eps=shape.eps)
        self.self_attention_res_proj = nn.Linear(shape.hidden, 1, bias=False)
        self.mlp_res_norm = RmsNorm(shape.hidden, eps=shape.eps)
        self.mlp_res_proj = nn.Linear(shape.hidden, 1, bias=False)
        if index == 0:
            self.mlp = Mlp(shape, shape.dense)
        else:
            self.block_sparse_moe = Moe(shape)

    def forward(self, prefix: torch.Tensor, bank: list[torch.Tensor]) -> torch.Tensor:
        h = mix(prefix, bank, self.self_attention_res_norm, self.self_attention_res_proj)
        if self.snapshot:
            bank.append(prefix)
        a = self.self_attn(self.input_layernorm(h))
        prefix = a if self.snapshot else prefix + a
        m = self.post_attention_layernorm(mix(prefix, bank, self.mlp_res_norm, self.mlp_res_proj))
        f: torch.Tensor = self.mlp(m) if hasattr(self, "mlp") else self.block_sparse_moe(m)
        return prefix + f


class Text(nn.Module):
    """Embedding, layers, final mix and norm."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, n) for n in range(shape.layers))
        self.output_attn_res_norm = RmsNorm(shape.hidden, eps=shape.eps)
        self.output_attn_res_proj = nn.Linear(shape.hidden, 1, bias=False)
        self.norm = RmsNorm(shape.hidden, eps=shape.eps)


class K3(nn.Module):
    """Tokens [B, T], T a multiple of 16, to hidden [B, T, hidden]; `lm_head` is applied apart."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.shape = shape
        self.model = Text(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        with torch.no_grad():
            _initialise(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        text = self.model
        prefix = text.embed_tokens(tokens)
        bank: list[torch.Tensor] = []
        for layer in text.layers:
            prefix = layer(prefix, bank)
        mixed = mix(prefix, bank, text.output_attn_res_norm, text.output_attn_res_proj)
        out: torch.Tensor = text.norm(mixed)
        return out

    def moes(self) -> list[Moe]:
        """The mixture layers, in order."""
        return [m for m in self.modules() if isinstance(m, Moe)]


def _initialise(model: K3) -> None:
    """Linear weights by fan-in, then the starts that let look-ups form within few tokens."""
    for name, p in model.named_parameters():
        if name.endswith("_res_proj.weight"):
            nn.init.zeros_(p)
        elif name.endswith(("o_proj.weight", ".down_proj.weight", "routed_expert_up_proj.weight")):
            nn.init.normal_(p, std=OUT * p.shape[-1] ** -0.5)
        elif name.endswith("f_b_proj.weight"):
            nn.init.normal_(p, std=0.01)
        elif name.endswith("embed_tokens.weight"):
            nn.init.normal_(p, std=0.5)
        elif p.ndim == 2 or "experts." in name:
            nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    model.lm_head.weight.copy_(HEAD * model.model.embed_tokens.weight)
    for module in model.modules():
        if isinstance(module, Kda):
            _shift(module)
            _spread_decays(module)


def _shift(kda: Kda) -> None:
    """Queries meet the keys of equal tokens, values come back as themselves, some heads shifted.

    With keys `lag` tokens late a head stores (a token's predecessor, the token), which is what
    copying and recall look up; from a random start this took more tokens than a short run has.
    """
    kda.k_proj.weight.copy_(kda.q_proj.weight)
    kda.o_proj.weight.copy_(0.5 * kda.v_proj.weight.T)
    d = kda.shape.head_dim
    for conv, lags in ((kda.q_conv1d, QUERY_LAGS), (kda.k_conv1d, KEY_LAGS), (kda.v_conv1d, None)):
        nn.init.uniform_(conv.weight, -0.1, 0.1)
        for head in range(kda.shape.heads):
            lag = lags[head % len(lags)] if lags else 0
            conv.weight[head * d : (head + 1) * d, 0, -1 - lag] += 1.0


def _spread_decays(kda: Kda) -> None:
    """A from 1 to 16 over the heads; dt_bias so that memories reach from 20 to 2000 tokens."""
    shape = kda.shape
    kda.A_log.copy_(torch.linspace(0.0, math.log(16.0), shape.heads))
    spread = torch.linspace(math.log(20.0), math.log(2000.0), shape.head_dim)
    rate = torch.exp(-spread) / -shape.gate_lower_bound
    kda.dt_bias.view(shape.heads, -1).copy_(torch.logit(rate) / kda.A_log.exp()[:, None])
