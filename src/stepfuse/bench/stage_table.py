"""The stage breakdown as a table."""

from __future__ import annotations

from statistics import mean

from rich.table import Table

from stepfuse.bench.step import StageTime


def stage_table(times: list[StageTime]) -> Table:
    """One line per kind of stage; per row count the members' mean work and wait, and the share of
    the step that both take.
    """
    table = Table(
        title="Where the specialized step's time goes: work + wait in ms, mean over the members",
        caption="n: stages, ends: those that end in a barrier; wait: at these barriers, and until "
        "woken; means over the middle half of the traced steps",
        caption_justify="left",
    )
    widths = list(dict.fromkeys(t.rows for t in times))
    table.add_column("stages", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("ends", justify="right", no_wrap=True)
    for rows in widths:
        table.add_column(f"{rows} row{'s' * (rows > 1)}", justify="right", no_wrap=True)
    totals = {rows: sum(sum(_both(t)) for t in times if t.rows == rows) for rows in widths}
    by_key = {(t.rows, t.kind): t for t in times}
    for kind in dict.fromkeys(t.kind for t in times):
        first = by_key[widths[0], kind]
        cells = [_cell(_both(by_key[rows, kind]), totals[rows]) for rows in widths]
        table.add_row(kind, str(first.stages), str(first.barriers), *cells)
    table.add_section()
    one = [t for t in times if t.rows == widths[0]]
    counts = (str(sum(t.stages for t in one)), str(sum(t.barriers for t in one)))
    table.add_row("all", *counts, *(_cell(_sums(times, r), totals[r]) for r in widths))
    return table


def _both(time: StageTime) -> tuple[float, float]:
    return mean(time.work_ms), mean(time.wait_ms)


def _sums(times: list[StageTime], rows: int) -> tuple[float, float]:
    work, wait = zip(*(_both(t) for t in times if t.rows == rows), strict=True)
    return sum(work), sum(wait)


def _cell(both: tuple[float, float], total: float) -> str:
    return f"{both[0]:.3f} + {both[1]:.3f} {100 * sum(both) / total:4.1f}%"
