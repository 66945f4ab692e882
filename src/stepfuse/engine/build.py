"""From a checkpoint folder to the parts of an engine; every refusal comes before anything loads."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.core.config import Geometry
from stepfuse.core.errors import CheckpointError, RequestError
from stepfuse.engine.location import model_name, resolve_model
from stepfuse.engine.parts import EngineOptions, Facts, Parts
from stepfuse.engine.pool import CachePlan, Caches, CacheWish, plan_caches
from stepfuse.engine.team import fused_runtime, level_here, start_core
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.plan import DecodeBackend
from stepfuse.runtime.standard import StandardRuntime
from stepfuse.runtime.support import check_specialized, require_specialized
from stepfuse.weights.layout import arena_bytes
from stepfuse.weights.load import LoadOptions, load, open_model
from stepfuse.weights.memory import check_fits
from stepfuse.weights.prepared import Prepared

log = logging.getLogger("stepfuse")

# Longest sequence where the caller names none: the caches of eight such take little beside the
# weights of every member.
DEFAULT_MODEL_LEN = 4096
# Rows of the widest decode step the specialized path is prepared for.
PREPARED_ROWS = 8


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known before loading."""

    folder: Path
    geometry: Geometry
    tokenizer: TiktokenTokenizer | None
    eos_ids: frozenset[int]
    max_model_len: int
    caches: CachePlan
    unsupported: tuple[str, ...]


def build(options: EngineOptions) -> Parts:
    """Check everything, then load. Raises the StepfuseError of the first thing that is wrong."""
    checked = check(options)
    keys = frozenset(options.allow_config_keys)
    loaded = load(checked.folder, LoadOptions(keys, prepared=options.prepared))
    for notice in loaded.notices:
        log.info("%s", notice)
    if checked.unsupported and options.decode_backend == "auto":
        log.warning("no specialized path: %s", "; ".join(checked.unsupported))
    caches = Caches(checked.caches)
    core = start_core(options.threads)
    views = (caches.latent.views(), caches.state.views())
    fused = None
    if not checked.unsupported and options.decode_backend != "standard":
        fused = fused_runtime((checked.geometry, loaded.weights), views, core, PREPARED_ROWS)
    return Parts(
        geometry=checked.geometry,
        pool=caches,
        standard=StandardRuntime(checked.geometry, loaded.weights, *views, core.team),
        backend=options.decode_backend,
        max_model_len=checked.max_model_len,
        facts=Facts(
            model_name(options.model_path), options.kv_cache_dtype, core.threads, core.level
        ),
        fused=fused,
        prepared_rows=PREPARED_ROWS if fused else 0,
        unsupported=checked.unsupported,
        tokenizer=checked.tokenizer,
        eos_ids=checked.eos_ids,
        max_num_seqs=options.max_num_seqs,
        prefill_chunk=options.prefill_chunk,
        team=core.team,
        close=caches.close,
    )


def check(options: EngineOptions) -> Checked:
    """Options, config, support, tokenizer and memory plan; no weight is read."""
    _check_options(options)
    folder = resolve_model(options.model_path)
    _, _, geometry = open_model(folder, frozenset(options.allow_config_keys))
    support = (geometry, options.kv_cache_dtype, level_here(), PREPARED_ROWS)
    if options.decode_backend == "latency_specialized":
        require_specialized(*support)
    tokenizer = TiktokenTokenizer.load(folder)
    if tokenizer is not None and tokenizer.vocab > geometry.vocab:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab} ids, the model {geometry.vocab}"
        )
    length = _model_len(options.max_model_len, geometry)
    wish = CacheWish(options.kv_cache_dtype, length, options.max_num_seqs, options.cache_bytes)
    caches = plan_caches(geometry, wish)
    what = (
        f"the weights of {folder} and caches for {options.max_num_seqs} requests of {length} tokens"
    )
    check_fits(arena_bytes(geometry) + caches.bytes, what)
    eos_ids = frozenset(geometry.eos_ids) | _generation_eos(folder)
    if tokenizer is not None and tokenizer.eos_id is not None:
        eos_ids |= {tokenizer.eos_id}
    unsupported = tuple(check_specialized(*support))
    return Checked(folder, geometry, tokenizer, eos_ids, length, caches, unsupported)


def _check_options(options: EngineOptions) -> None:
    for name, value, known in (
        ("decode_backend", options.decode_backend, get_args(DecodeBackend)),
        ("kv_cache_dtype", options.kv_cache_dtype, get_args(KvDtype)),
        ("prepared", options.prepared, get_args(Prepared)),
    ):
        if value not in known:
            raise RequestError(f"{name} is {value!r}: it must be one of {', '.join(known)}")
    for name, number, high in (
        ("max_num_seqs", options.max_num_seqs, 4096),
        ("prefill_chunk", options.prefill_chunk, 65536),
        ("threads", 1 if options.threads is None else options.threads, 256),
        ("max_model_len", options.max_model_len or 1, 2**31 - 1),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= high:
            raise RequestError(f"{name} is {number!r}: it must be an integer from 1 to {high}")


def _model_len(wanted: int | None, geometry: Geometry) -> int:
    if wanted is None:
        return min(DEFAULT_MODEL_LEN, geometry.max_positions)
    if not 2 <= wanted <= geometry.max_positions:
        raise RequestError(
            f"max_model_len is {wanted}: it must be from 2 to the model's {geometry.max_positions}"
        )
    return wanted


def _generation_eos(folder: Path) -> frozenset[int]:
    """`eos_token_id` of generation_config.json, a number or a list; empty where there is none."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return frozenset()
    try:
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not readable as a JSON object ({error})") from error
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(isinstance(i, int) for i in listed):
        raise CheckpointError(f"{path}: eos_token_id is {ids!r}, expected an id or a list of ids")
    return frozenset(listed)
