"""`stepfuse bench step`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stepfuse.cli import options
from stepfuse.cli.bench.output import name_list, row_list, show

if TYPE_CHECKING:
    from stepfuse.bench.step import StageTime, StepBench
    from stepfuse.engine.engine import Engine
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
    stages: Annotated[
        bool, typer.Option("--stages", help="Also trace the specialized step, stage by stage.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw this PNG (stages included).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
    allow_config_keys: options.AllowKeys = None,
) -> None:
    """The decode-step table: standard, specialized, speed-up, bytes, % of roof."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench.plot import plot_steps, require_plot
    from stepfuse.bench.probe import probe_of
    from stepfuse.bench.stage_table import stage_table
    from stepfuse.bench.step import StepBench, bench_step, group_count
    from stepfuse.bench.table import step_table
    from stepfuse.cli.progress import ticking

    if plot is not None:
        require_plot()

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
        wanted = (stages or plot is not None) and "latency_specialized" in backends
        times = _traced(engine, bench) if wanted else []
    by_rows = {n: tuple(t for t in times if t.rows == n) for n in bench.rows}
    figures = [
        replace(f, stages=by_rows[f.rows]) if f.backend == "latency_specialized" else f
        for f in figures
    ]
    show(step_table(figures), [asdict(f) for f in figures], json_file)
    if stages and times:
        show(stage_table(times))
    if plot is not None:
        plot_steps(figures, times, plot)
        typer.echo(f"wrote {plot}", err=True)


def _traced(engine: Engine, bench: StepBench) -> list[StageTime]:
    # Imported here: it needs the native core, the rest of the command does not.
    from stepfuse.bench.stages import stage_times

    return [time for rows in bench.rows for time in stage_times(engine, bench, rows)]
