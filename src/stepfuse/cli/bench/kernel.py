"""`stepfuse bench kernel`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stepfuse.cli.bench.output import row_list, show
from stepfuse.core.errors import RequestError


def kernel(
    op: Annotated[str, typer.Option(help="Comma separated, or all.")] = "all",
    level: Annotated[str, typer.Option(help="Levels, comma separated, best, or all.")] = "best",
    rows: Annotated[str, typer.Option(help="Rows of a call, comma separated.")] = "1,2,4,8",
    threads: Annotated[int | None, typer.Option(min=1, help="Default: every core.")] = None,
    repeats: Annotated[int, typer.Option(min=3)] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write this file.")] = None,
) -> None:
    """Kernels by themselves: GB/s and % of plain reads, op by op."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.bench.kernel import OPS, KernelBench, bench_kernel, cases, check_ops, kernel_table
    from stepfuse.cli.progress import ticking
    from stepfuse.ops import native

    known = native.levels()
    levels = {"all": tuple(known), "best": (known[-1],)}.get(level, tuple(level.split(",")))
    for name in levels:
        if name not in known:
            raise RequestError(f"--level {name!r}: this machine runs {', '.join(known)}")
    ops = OPS if op == "all" else check_ops(tuple(op.split(",")))
    bench = KernelBench(ops, levels, row_list(rows), repeats)
    with ticking(len(list(cases(bench)))) as tick:
        figures = bench_kernel(bench, threads or native.cores(), tick)
    show(kernel_table(figures), [asdict(f) for f in figures], json_file)
