"""`stepfuse bench ...`: measurements with every label."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stepfuse.cli import options
from stepfuse.core.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from stepfuse.runtime.plan import DecodeBackend

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure this machine."""


@app.command()
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

    bench = StepBench(_rows(rows), _backends(backend), tokens, runs, seed=seed)
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
    _show(step_table(figures), [asdict(f) for f in figures], json_file)


@app.command()
def peers(
    model: options.Model,
    rows: Annotated[str, typer.Option(help="Active requests, comma separated.")] = "1,2,4,8",
    prefill: Annotated[
        str, typer.Option(help="Prompt lengths to time as well, comma separated.")
    ] = "",
    threads: Annotated[int, typer.Option(min=1, help="Threads of either side.")] = 2,
    steps: Annotated[int, typer.Option(min=3, help="Decode steps per turn.")] = 24,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    python: Annotated[Path, typer.Option(help="The peers' interpreter (make peers).")] = Path(
        ".venv-peers/bin/python"
    ),
    work: Annotated[Path, typer.Option(help="Where converted checkpoints are kept.")] = Path(
        "build/peers"
    ),
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
    allow_config_keys: options.AllowKeys = None,
) -> None:
    """Decode (and prefill) beside llama.cpp in one run, turn by turn."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench.peers import LlamaCpp, PeerBench, bench_peers, turn_count
    from stepfuse.bench.probe import probe_of
    from stepfuse.bench.table import peer_table
    from stepfuse.cli.progress import ticking
    from stepfuse.engine.location import resolve_model

    lengths = _rows(prefill) if prefill else ()
    bench = PeerBench(_rows(rows), lengths, steps, runs)
    choice = options.EngineChoice(
        model,
        threads=threads,
        allow_keys=options.key_list(allow_config_keys),
        max_model_len=max(steps, *lengths, 2) + 2,
        max_num_seqs=max(bench.rows),
    )
    with (
        LlamaCpp(python, resolve_model(model), work, threads) as peer,
        options.open_engine(choice) as engine,
        ticking(turn_count(bench)) as tick,
    ):
        figures = bench_peers(engine, bench, probe_of(engine), peer, tick)
    _show(peer_table(figures), [asdict(f) for f in figures], json_file)


def _show(table: Table, figures: list[dict[str, object]], json_file: Path | None) -> None:
    """Print the table; write the figures where asked."""
    from rich.console import Console

    console = Console()
    # A narrow terminal (or none) must not cut figures.
    console.width = max(console.width, 118)
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
        typer.echo(f"wrote {json_file}", err=True)


def _rows(text: str) -> tuple[int, ...]:
    try:
        rows = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        rows = ()
    if not rows or min(rows) < 1:
        raise RequestError(f"--rows {text!r}: give whole numbers of at least 1, as in 1,2,4,8")
    return rows


def _backends(text: str) -> tuple[DecodeBackend, ...]:
    known = ("standard", "latency_specialized")
    names = tuple(dict.fromkeys(known if text in ("both", "all") else text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestError(f"--backend {unknown[0]!r}: give {known[0]}, {known[1]} or both")
    return cast("tuple[DecodeBackend, ...]", names)
