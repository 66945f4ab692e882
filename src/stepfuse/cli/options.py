"""Options several commands share, and the engine they describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stepfuse.engine.engine import Engine


class Backend(StrEnum):
    """Values of --decode-backend."""

    auto = "auto"
    standard = "standard"
    latency_specialized = "latency_specialized"


class KvCacheDtype(StrEnum):
    """Values of --kv-cache-dtype."""

    bf16 = "bf16"
    fp8 = "fp8"


class PreparedFile(StrEnum):
    """Values of --prepared."""

    auto = "auto"
    off = "off"
    require = "require"


Model = Annotated[str, typer.Argument(help="Checkpoint folder, or k3-tiny for the bundled model.")]
DecodeBackend = Annotated[
    Backend, typer.Option("--decode-backend", help="auto falls back to standard and says why.")
]
KvDtype = Annotated[KvCacheDtype, typer.Option("--kv-cache-dtype", help="Latent KV cache.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Default: every core it may use.")
]
Prepared = Annotated[
    PreparedFile,
    typer.Option("--prepared", help="The file `stepfuse prepare` writes: use it, not, or only it."),
]
AllowKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-config-keys", help="Unknown config keys to accept (comma separated, repeatable)."
    ),
]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the command line says about the engine."""

    model: str
    backend: Backend = Backend.auto
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.bf16
    threads: int | None = None
    allow_keys: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int = 8
    prepared: PreparedFile = PreparedFile.auto


def key_list(values: list[str] | None) -> tuple[str, ...]:
    """`a,b` and `a` `b` alike."""
    return tuple(key for value in values or () for key in value.split(",") if key)


@contextmanager
def open_engine(choice: EngineChoice) -> Iterator[Engine]:
    """The engine of a command, closed behind it."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.engine.engine import Engine

    engine = Engine(
        choice.model,
        decode_backend=choice.backend.value,
        kv_cache_dtype=choice.kv_cache_dtype.value,
        threads=choice.threads,
        max_model_len=choice.max_model_len,
        max_num_seqs=choice.max_num_seqs,
        allow_config_keys=choice.allow_keys,
        prepared=choice.prepared.value,
    )
    with engine:
        yield engine
