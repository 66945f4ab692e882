"""`stepfuse bench peers`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stepfuse.cli import options
from stepfuse.cli.bench.output import name_list, row_list, show

if TYPE_CHECKING:
    from stepfuse.bench.peer_process import Kind

PEERS, KINDS = ("llama.cpp", "pytorch"), ("decode", "verify", "prefill")


def peers(
    model: options.Model,
    peer: Annotated[str, typer.Option(help="llama.cpp, pytorch, or both.")] = "llama.cpp",
    kinds: Annotated[str, typer.Option(help="Of decode, verify, prefill.")] = "decode",
    rows: Annotated[str, typer.Option(help="Rows of decode and verify steps.")] = "1,2,4,8",
    prompts: Annotated[str, typer.Option(help="Prompt lengths of prefill.")] = "512",
    threads: Annotated[int, typer.Option(min=1, help="Threads of either side.")] = 2,
    steps: Annotated[int, typer.Option(min=3, help="Steps per turn.")] = 24,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    python: Annotated[Path, typer.Option(help="llama.cpp's interpreter (make peers).")] = Path(
        ".venv-peers/bin/python"
    ),
    work: Annotated[Path, typer.Option(help="Where converted checkpoints are kept.")] = Path(
        "build/peers"
    ),
    plot: Annotated[Path | None, typer.Option(help="Also draw this PNG.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
    allow_config_keys: options.AllowKeys = None,
) -> None:
    """Decode, verify and prefill beside llama.cpp and PyTorch, turn by turn in one run."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench.peer_process import STARTS, PeerChoice
    from stepfuse.bench.peers import PeerBench, bench_peers, turn_count
    from stepfuse.bench.plot import plot_peers, require_plot
    from stepfuse.bench.probe import probe_of
    from stepfuse.bench.stages import stage_times
    from stepfuse.bench.step import StepBench
    from stepfuse.bench.table import peer_table
    from stepfuse.cli.progress import ticking
    from stepfuse.engine.location import resolve_model

    if plot is not None:
        require_plot()
    names = name_list("--peer", peer, PEERS)
    wanted = cast("tuple[Kind, ...]", name_list("--kinds", kinds, KINDS))
    bench = PeerBench(row_list(rows), row_list(prompts, "--prompts"), wanted, steps, runs)
    keys = options.key_list(allow_config_keys)
    choice = options.EngineChoice(
        model,
        threads=threads,
        allow_keys=keys,
        max_model_len=bench.longest,
        max_num_seqs=max(bench.rows),
    )
    start = PeerChoice(resolve_model(model), threads, bench.longest, python, work, keys)
    figures = []
    with options.open_engine(choice) as engine, ticking(len(names) * turn_count(bench)) as tick:
        probe = probe_of(engine)
        for name in names:
            # One peer at a time: each holds the whole model.
            with STARTS[name](start) as process:
                figures += bench_peers(engine, bench, probe, process, tick)
        traced = StepBench(bench.rows, tokens=min(steps, 32), waves=1)
        times = []
        if plot is not None and engine.parts.fused is not None:
            times = [t for n in bench.rows for t in stage_times(engine, traced, n)]
    show(peer_table(figures), [asdict(f) for f in figures], json_file)
    if plot is not None:
        plot_peers(figures, times, plot)
        typer.echo(f"wrote {plot}", err=True)
