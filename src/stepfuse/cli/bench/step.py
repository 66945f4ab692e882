"""`stepfuse bench step`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stepfuse.cli import options
from stepfuse.cli.bench.output import name_list, row_list, show

if TYPE_CHECKING:
    from stepfuse.runtime.plan import DecodeBackend


def step(
    model: options.Model,
    rows: Annotated[str, typer.Option(help="Active requests, comma separated.")] = "1,2,4,8",
    backend: Annotated[
        str, typer.Option(help="standard, latency_specialized, or both, comma separated.")
    ] = "standard,latency_specialized",
    kv_cache_dtype: options.KvDtype = options.KvCacheDtype.bf16,
    threads: options.Threads = None,
    tokens: Annotated[int, typer.Option(min=3, help="Output tokens per prompt.")] = 32,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of the prompts' random token ids.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
    allow_config_keys: options.AllowKeys = None,
) -> None:
    """The decode-step table: standard, specialized, speed-up, bytes, % of roof."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench.probe import probe_of
    from stepfuse.bench.step import StepBench, bench_step, group_count
    from stepfuse.bench.table import step_table
    from stepfuse.cli.progress import ticking

    known = ("standard", "latency_specialized")
    backends = cast("tuple[DecodeBackend, ...]", name_list("--backend", backend, known))
    bench = StepBench(row_list(rows), backends, tokens, runs, seed=seed)
    choice = options.EngineChoice(
        model,
        kv_cache_dtype=kv_cache_dtype,
        threads=threads,
        allow_keys=options.key_list(allow_config_keys),
        max_model_len=tokens + 1,
        max_num_seqs=max(bench.rows),
    )
    with options.open_engine(choice) as engine, ticking(group_count(bench)) as tick:
        figures = bench_step(engine, bench, probe_of(engine, seed), tick)
    show(step_table(figures), [asdict(f) for f in figures], json_file)
