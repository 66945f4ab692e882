"""The decode-step table with every label a figure must carry."""

from __future__ import annotations

from rich.table import Table

from stepfuse.bench.peers import PeerFigure
from stepfuse.bench.step import StepFigure

STANDARD, SPECIALIZED = "standard", "latency_specialized"


def step_table(figures: list[StepFigure]) -> Table:
    """One line per row count: both paths, their ratio, bytes and share of the read roof."""
    first = figures[0]
    table = Table(
        title=f"Decode step of {first.model}: median time between steps, in ms",
        caption=labels(figures),
        caption_justify="left",
    )
    for name in ("active requests = rows", "standard", "specialized", "p90", "native", "speed-up"):
        table.add_column(name, justify="right")
    for name in ("bytes", "% of roof (std / spec)"):
        table.add_column(name, justify="right")
    by_key = {(f.backend, f.rows): f for f in figures}
    for rows in dict.fromkeys(f.rows for f in figures):
        standard, special = by_key.get((STANDARD, rows)), by_key.get((SPECIALIZED, rows))
        table.add_row(*_cells(rows, standard, special))
    return table


def peer_table(figures: list[PeerFigure]) -> Table:
    """One line per case: the peer, us, the ratio, each with the range of its runs."""
    first = figures[0]
    table = Table(
        title=f"{first.model} beside {', '.join(dict.fromkeys(f.peer for f in figures))}",
        caption=_peer_caption(figures),
        caption_justify="left",
    )
    names = ("peer", "kind", "rows / tokens", "peer ms", "(runs)", "ours ms", "(runs)", "ratio")
    for name in (*names, "our path"):
        table.add_column(name, justify="right", no_wrap=True)
    for f in figures:
        kind = "prefill (TTFT)" if f.kind == "prefill" else f.kind
        peer, ours = _range(f.peer_ms_runs), _range(f.ours_ms_runs)
        numbers = (f"{f.peer_ms:.2f}", peer, f"{f.ours_ms:.2f}", ours, f"{f.ratio:.2f}x")
        table.add_row(f.peer, kind, str(f.rows), *numbers, f.path.removeprefix("latency_"))
    return table


def _peer_caption(figures: list[PeerFigure]) -> str:
    first, machine = figures[0], figures[0].machine
    ping = "" if first.ping_pong_ns is None else f", ping-pong {first.ping_pong_ns:.0f} ns"
    reads = sorted(f.read_gbps for f in figures)
    return (
        "median ms; decode: n sequences of one row; verify: one sequence of n rows, logits each; "
        f"greedy, no speculation; KV {first.kv_cache_dtype}; {first.threads} threads each, level "
        f"{first.level}; {first.runs} runs in turns, ratio = median of the runs' ratios; read "
        f"{reads[0]:.1f}-{reads[-1]:.1f} GB/s{ping} in the same runs; waiting sides used at most "
        f"{max(f.waiting_cpu for f in figures):.0%} of a core; {machine['cpu']}, "
        f"{machine['cores']} cores, commit {first.commit}"
    )


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def labels(figures: list[StepFigure]) -> str:
    """Stage, lengths, precision, threads, machine, commit, runs and spread."""
    first, machine = figures[0], figures[0].machine
    ping = "" if first.ping_pong_ns is None else f", ping-pong {first.ping_pong_ns:.0f} ns"
    spread = max(max(f.step_ms_runs) / min(f.step_ms_runs) - 1 for f in figures)
    return (
        f"decode only, input {first.input_tokens}, output {first.output_tokens}, greedy, no "
        f"speculation; weights {first.weights}, KV {first.kv_cache_dtype}, state fp32, one rank of "
        f"{first.threads} threads, level {first.level}; {first.runs} runs x "
        f"{first.prompts_per_run} prompts per request, run medians within {spread:.0%}; read "
        f"{first.read_gbps:.1f} GB/s{ping} in the same run; bytes with {first.routing}; "
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, commit "
        f"{first.commit}"
    )


def _cells(rows: int, standard: StepFigure | None, special: StepFigure | None) -> list[str]:
    either = special or standard
    ratio = "-"
    if standard and special:
        ratio = f"{standard.step_ms_median / special.step_ms_median:.2f}x"
    native = special.native_ms_median if special else None
    return [
        str(rows),
        "-" if standard is None else f"{standard.step_ms_median:.2f}",
        "-" if special is None else f"{special.step_ms_median:.2f}",
        "-" if special is None else f"{special.step_ms_p90:.2f}",
        "-" if native is None else f"{native:.2f}",
        ratio,
        "-" if either is None else f"{either.bytes_per_step / 1e6:.1f} MB",
        f"{_percent(standard)} / {_percent(special)}",
    ]


def _percent(figure: StepFigure | None) -> str:
    return "-" if figure is None else f"{100 * figure.roof_fraction:.0f} %"
