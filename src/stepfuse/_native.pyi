# The native core (native/bind). Addresses are `data_ptr()` values the caller keeps alive; the
# structs are those of native/bind/calls.h.
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

class Team:
    def __init__(
        self,
        threads: int,
        cpus: Sequence[int] | None = None,
        pin: bool = True,
        spin_us: float = 50.0,
        stop_s: float = 30.0,
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def cpus(self) -> list[int]: ...

def read_bandwidth(team: Team, bytes: int = ..., passes: int = 8) -> dict[str, float]: ...
def ping_pong(team: Team, rounds: int = 20000) -> float: ...
def topology(root: str = "/sys") -> list[dict[str, int]]: ...
def cores() -> int: ...

class KernelBench:
    def __init__(self, team: Team, bytes: int) -> None: ...
    def time(
        self, op: str, level: str, shape: tuple[int, int, int, int, int]
    ) -> list[tuple[int, float, float]]: ...

def levels() -> list[str]: ...
def level() -> str: ...
def set_level(name: str) -> None: ...
def argmax(x: int, n: int, /) -> int: ...
def sigmoid_gate(gate: int, n: int, x: int, /) -> None: ...
def add(a: int, b: int, n: int, out: int, /) -> None: ...
def widen(x: int, n: int, out: int, /) -> None: ...

class Activation:
    def __init__(self, situ: bool, beta: float, linear_beta: float) -> None: ...

class ProductCall:
    weight: int
    x: int
    y: int
    rows: int
    in_features: int
    out_features: int
    heads: int

class ExpertsCall:
    x: int
    y: int
    ids: int
    weights: int
    data: int
    expert_bytes: int
    w13_offset: int
    w13_scale_offset: int
    w2_offset: int
    w2_scale_offset: int
    rows: int
    chosen: int
    experts: int
    in_features: int
    width: int
    mxfp4: bool

class KdaCall:
    q: int
    k: int
    v: int
    decay: int
    beta: int
    gate: int
    out: int
    conv_weight: int
    a_log: int
    dt_bias: int
    norm_weight: int
    state: int
    conv_state: int
    state_stride: int
    conv_stride: int
    spans: int
    span_count: int
    heads: int
    dim: int
    gate_lower_bound: float
    norm_eps: float

class MlaCall:
    q_latent: int
    q_pe: int
    out: int
    kv_base: int
    page_bytes: int
    token_bytes: int
    spans: int
    pages: int
    pages_stride: int
    span_count: int
    page_tokens: int
    heads: int
    latent: int
    rope: int
    fp8: bool
    scale: float

class LatentCall:
    latent: int
    pe: int
    kv_base: int
    page_bytes: int
    token_bytes: int
    spans: int
    pages: int
    pages_stride: int
    span_count: int
    page_tokens: int
    latent_dim: int
    rope: int
    fp8: bool

class RouterCall:
    logits: int
    bias: int
    ids: int
    weights: int
    rows: int
    experts: int
    chosen: int
    scaling: float
    renormalize: bool

class MixCall:
    sources: int
    norm: int
    proj: int
    out: int
    count: int
    rows: int
    n: int
    eps: float

def rms_norm(x: int, weight: int, out: int, shape: Sequence[int], eps: float) -> None: ...
def attn_res(call: MixCall) -> None: ...
def route(call: RouterCall) -> None: ...
def linear(call: ProductCall, team: Team | None) -> None: ...
def linear_fp32(call: ProductCall, team: Team | None) -> None: ...
def gate_up(call: ProductCall, activation: Activation, team: Team | None) -> None: ...
def heads(call: ProductCall, team: Team | None) -> None: ...
def experts(call: ExpertsCall, activation: Activation, team: Team | None) -> None: ...
def kda(call: KdaCall, team: Team | None) -> None: ...
def mla(call: MlaCall, team: Team | None) -> None: ...
def latent_write(call: LatentCall) -> None: ...

# One prepared decode step (native/step/decode_step.h). `geometry` and `weights` as
# stepfuse.runtime.prepare makes them; latent views as (address, page bytes, token bytes, tokens per
# page, 0 BF16 | 1 FP8), state views as (state address, stride, conv address, stride).
class Step:
    def __init__(
        self,
        geometry: Mapping[str, object],
        weights: Mapping[str, int],
        team: Team,
        level: str,
        fuse_heads: bool = False,
    ) -> None: ...
    def bind_caches(
        self,
        latent: Sequence[tuple[int, int, int, int, int]],
        state: Sequence[tuple[int, int, int, int]],
        pages: int,
        slots: int,
    ) -> None: ...
    def bind_batch(
        self, token: int, position: int, slot: int, pages: tuple[int, int], logits: int
    ) -> None: ...
    # Nanoseconds. ValueError: a batch that cannot run; IndexError: no such page or slot.
    def run(self, rows: int, /) -> int: ...
    def run_until(self, rows: int, stages: int) -> int: ...
    def stages(self) -> list[dict[str, Any]]: ...
    def regions(self) -> list[str]: ...
    # A view of the region; private regions have a leading axis of members.
    def region(self, name: str, /) -> NDArray[Any]: ...
    def is_private(self, name: str, /) -> bool: ...
    def poison(self) -> None: ...
    def set_trace(self, on: bool, /) -> None: ...
    # (stage, member, begin ns, end ns) of the last run
    def trace(self) -> list[tuple[str, int, int, int]]: ...
    @property
    def barriers(self) -> int: ...
    @property
    def fused_heads(self) -> bool: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def level(self) -> str: ...
