"""`stepfuse bench gate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stepfuse.cli.bench.output import show
from stepfuse.core.errors import NativeError


def gate(
    threads: Annotated[int, typer.Option(min=1)] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every runtime.")] = 7,
    update: Annotated[
        bool, typer.Option("--update", help="Store this run's values for this machine.")
    ] = False,
    values: Annotated[
        Path | None, typer.Option(help="Stored values. Default: the project's own.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
) -> None:
    """Compare this run's ratios with stored ones; exit code 1 where something regressed."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench import gate as judge
    from stepfuse.bench.machine import machine_class, this_machine
    from stepfuse.cli.progress import ticking
    from stepfuse.ops.dispatch import chosen

    if chosen() != "native":
        raise NativeError("the gate judges the native core, which is not built: make build")
    from stepfuse.bench.gate_measure import measure, subject

    path = judge.VALUES if values is None else values
    stored = judge.read_values(path)
    with subject(threads) as under_test, ticking(2 * rounds) as tick:
        place = judge.Place(threads, machine_class(threads, under_test.best), this_machine().commit)
        measured = measure(under_test, rounds, tick)
        lines = judge.compare(measured, stored, place)
        if judge.complaints(lines) and not update:
            # A busy neighbour can make a ratio worse, but hardly the same one twice.
            measured = measured.better_of(measure(under_test, rounds, tick))
            lines = judge.compare(measured, stored, place)
    figures = [asdict(line) | {"machine": place.machine} for line in lines]
    show(judge.gate_table(lines, measured, stored, place), figures, json_file)
    if update:
        judge.update(path, measured, place)
        typer.echo(f"wrote {path}", err=True)
        return
    if all(line.verdict == "new" for line in lines):
        typer.echo(f"nothing is stored for {place.machine} yet: run with --update", err=True)
    found = judge.complaints(lines)
    for complaint in found:
        typer.echo(f"regressed: {complaint}", err=True)
    if found:
        raise typer.Exit(1)
