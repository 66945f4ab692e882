"""`stepfuse bench peers`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stepfuse.cli import options
from stepfuse.cli.bench.output import row_list, show


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

    lengths = row_list(prefill) if prefill else ()
    bench = PeerBench(row_list(rows), lengths, steps, runs)
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
    show(peer_table(figures), [asdict(f) for f in figures], json_file)
