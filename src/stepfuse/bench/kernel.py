"""Kernels by themselves: op x level x rows, each against plain reads of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, get_args

from rich.table import Table

from stepfuse.bench.machine import this_machine
from stepfuse.core.errors import RequestError

Op = Literal["bf16", "gate_up", "fp4", "fp4_gate_up", "kda"]
OPS: Final[tuple[Op, ...]] = get_args(Op)
# (in, out) of the matrices to stream through: K3's own sizes, and those of its quarter. `out` of a
# gate/up pair counts both. kda: (head dim, heads).
SHAPES: Final[dict[Op, tuple[tuple[int, int], ...]]] = {
    "bf16": ((7168, 1792), (1792, 1792)),
    "gate_up": ((7168, 1792), (1792, 3072)),
    "fp4": ((3072, 3584), (768, 896)),
    "fp4_gate_up": ((3584, 6144), (896, 1536)),
    "kda": ((128, 96),),
}
# Several times any last-level cache here, and small enough for every machine that runs the tests.
BLOCK_BYTES: Final = 768 << 20
# One repeat: long against a barrier, short against the minutes in which a shared host changes.
REPEAT_BYTES: Final = 96 << 20
SCALAR_BYTES: Final = 12 << 20


@dataclass(frozen=True, slots=True)
class KernelBench:
    """What to time. `repeats` of each case, with plain reads just before and after each."""

    ops: tuple[Op, ...] = OPS
    levels: tuple[str, ...] = ()
    rows: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 7


@dataclass(frozen=True, slots=True)
class KernelFigure:
    """Medians over repeats. `roof_fraction`: time of plainly reading the same bytes (kda: of
    reading and writing them in place) over the kernel's time; `roof_range`: its lowest and highest
    repeat. `gbps` counts what is read once. `unit_us`: one matrix, or one head's
    state, on one member.
    """

    op: Op
    level: str
    rows: int
    in_features: int
    out_features: int
    gbps: float
    floor_gbps: float
    roof_fraction: float
    roof_range: tuple[float, float]
    unit_us: float
    repeats: int
    threads: int
    commit: str
    machine: dict[str, object]


def cases(bench: KernelBench) -> Iterator[tuple[Op, str, int, tuple[int, int]]]:
    """(op, level, rows, (in, out)) of every figure, in the order they are measured."""
    for op in bench.ops:
        for shape in SHAPES[op]:
            for level in bench.levels:
                for rows in bench.rows if op != "kda" else (1,):
                    yield op, level, rows, shape


def check_ops(names: tuple[str, ...]) -> tuple[Op, ...]:
    """RequestError naming the first op that does not exist."""
    for name in names:
        if name not in OPS:
            raise RequestError(f"--op {name!r}: give some of {', '.join(OPS)}")
    return tuple(op for op in OPS if op in names)


def bench_kernel(
    bench: KernelBench, threads: int, progress: Callable[[str], None] = lambda _: None
) -> list[KernelFigure]:
    """Time every case. `progress` hears of each before it runs. MemoryPlanError where the block of
    random weights does not fit.
    """
    # Imported here: the module cannot be imported where the core is not built.
    from stepfuse.ops import native
    from stepfuse.weights.memory import check_fits

    check_fits(BLOCK_BYTES, "the random weights of bench kernel")
    block = native.kernel_bench(native.Team(threads), BLOCK_BYTES)
    machine = this_machine()
    figures = []
    for op, level, rows, shape in cases(bench):
        progress(f"{op} {shape[0]}, {level}, {rows} rows")
        size = SCALAR_BYTES if level == "scalar" else REPEAT_BYTES
        times = block.time(op, level, (rows, *shape, size, bench.repeats))
        fractions = [floor / ns for _, ns, floor in times]
        elements = shape[0] * (shape[0] if op == "kda" else shape[1])
        unit = elements * {"kda": 4.0, "fp4": 0.53125, "fp4_gate_up": 0.53125}.get(op, 2.0)
        figures.append(
            KernelFigure(
                op=op,
                level=level,
                rows=rows,
                in_features=shape[0],
                out_features=shape[1],
                gbps=median(size / ns for size, ns, _ in times),
                floor_gbps=median(size / floor for size, _, floor in times),
                roof_fraction=median(fractions),
                roof_range=(min(fractions), max(fractions)),
                unit_us=median(ns / size for size, ns, _ in times) * unit * threads / 1e3,
                repeats=bench.repeats,
                threads=threads,
                commit=machine.commit,
                machine=machine.as_dict(),
            )
        )
    return figures


def kernel_table(figures: list[KernelFigure]) -> Table:
    """One line per op, size and level; a column per row count."""
    first = figures[0]
    rows = tuple(dict.fromkeys(f.rows for f in figures))
    table = Table(
        title="Kernels streaming from memory: GB/s (% of plain reads of the same bytes)",
        caption=(
            f"{first.threads} threads, medians of {first.repeats} repeats, reads just before and "
            f"after each; kda: one token for every head, against reading and writing the state in "
            f"place, and us per 64 KiB head; {first.machine['cpu']}, {first.machine['cores']} "
            f"cores, commit {first.commit}"
        ),
        caption_justify="left",
    )
    for name in ("op", "in x out", "level"):
        table.add_column(name)
    for count in rows:
        table.add_column(f"{count} row{'s' if count > 1 else ''}", justify="right")
    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for f in figures:
        key = (f.op, f"{f.in_features} x {f.out_features}", f.level)
        each = f", {f.unit_us:.2f} us" if f.op == "kda" else ""
        cell = f"{f.gbps:.1f} ({f.roof_fraction * 100:.0f} %{each})"
        lines.setdefault(key, {})[f.rows] = cell
    for line, cells in lines.items():
        table.add_row(*line, *(cells.get(count, "") for count in rows))
    return table
