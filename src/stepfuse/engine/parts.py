"""What an engine is made of, and what it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.core.config import Geometry
from stepfuse.core.errors import RequestError
from stepfuse.engine.scheduler import CachePool
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.batch import StepInput, StepOutput
from stepfuse.runtime.plan import DecodeBackend, Path
from stepfuse.weights.prepared import Prepared

if TYPE_CHECKING:
    from stepfuse.ops.native import Team


class Runtime(Protocol):
    """Executes one step; both runtimes do."""

    def run(self, step: StepInput) -> StepOutput: ...


class Closed:
    """Stands in for the runtimes of a closed engine."""

    def run(self, step: StepInput) -> StepOutput:
        raise RequestError(f"the engine is closed: a step of {step.width} rows cannot run")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The arguments of Engine, as given."""

    model_path: str
    decode_backend: DecodeBackend
    kv_cache_dtype: KvDtype
    threads: int | None
    max_model_len: int | None
    max_num_seqs: int
    cache_bytes: int | None
    allow_config_keys: tuple[str, ...]
    prefill_chunk: int
    prepared: Prepared = "auto"


def key_tuple(keys: str | Sequence[str]) -> tuple[str, ...]:
    """One key or several."""
    return (keys,) if isinstance(keys, str) else tuple(keys)


@dataclass(frozen=True, slots=True)
class Facts:
    """What figures must carry: model name, KV dtype, threads and the ISA level that runs."""

    model: str
    kv_cache_dtype: KvDtype
    threads: int
    level: str


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Parts:
    """`fused` is None and `prepared_rows` 0 where the specialized path cannot serve; `unsupported`
    then lists every reason. `close` lets go of threads and memory.
    """

    geometry: Geometry
    pool: CachePool
    standard: Runtime
    backend: DecodeBackend
    max_model_len: int
    facts: Facts
    fused: Runtime | None = None
    prepared_rows: int = 0
    unsupported: tuple[str, ...] = ()
    tokenizer: TiktokenTokenizer | None = None
    eos_ids: frozenset[int] = frozenset()
    max_num_seqs: int = 8
    prefill_chunk: int = 512
    team: Team | None = None
    close: Callable[[], None] = field(default=_nothing)

    @property
    def vocab(self) -> int:
        return self.geometry.vocab

    def runtime(self, path: Path) -> Runtime:
        if path == "standard" or self.fused is None:
            return self.standard
        return self.fused
