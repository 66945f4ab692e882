"""The regression gate: this run's ratios and counts against those stored for this kind of machine.

Only ratios of one run are compared, never times: machines are shared, and a time changes from hour
to hour. Counts are compared exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from stepfuse.bench.gate_measure import GateError, Measured

VALUES = Path(__file__).with_name("gate.json")
FORMAT = 1
# A ratio may be this much larger than the stored one.
MARGIN = 0.25

Verdict = Literal["ok", "slower", "faster", "changed", "new"]
RED: tuple[Verdict, ...] = ("slower", "changed")


@dataclass(frozen=True, slots=True)
class Place:
    """Where values belong: counts to a number of threads, ratios to a kind of machine."""

    threads: int
    machine: str
    commit: str


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison; `stored` None where nothing is stored yet."""

    name: str
    stored: float | None
    now: float
    verdict: Verdict

    @property
    def change(self) -> float:
        """Relative to the stored value; 0 where there is none."""
        return self.now / self.stored - 1 if self.stored else 0.0


def read_values(path: Path) -> dict[str, Any]:
    """The stored values; an empty set where the file is not there. Raises GateError."""
    if not path.is_file():
        return {"format": FORMAT, "margin": MARGIN, "counts": {}, "ratios": {}}
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        known = values["format"] == FORMAT and all(values[k] is not None for k in _KEYS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GateError(f"{path}: not a file of gate values ({error!r})") from None
    if not known:
        raise GateError(
            f"{path}: format {values['format']}, this version reads {FORMAT}; write it anew with "
            "--update"
        )
    return values


_KEYS = ("margin", "counts", "ratios")


def compare(measured: Measured, values: dict[str, Any], place: Place) -> list[Line]:
    """Counts first, then ratios, in the order they were measured."""
    counts = values["counts"].get(str(place.threads), {})
    ratios = values["ratios"].get(place.machine, {}).get("values", {})
    margin = float(values["margin"])
    lines = [
        Line(name, counts.get(name), now, _count_verdict(counts.get(name), now))
        for name, now in measured.counts.items()
    ]
    return lines + [
        Line(name, ratios.get(name), now, _ratio_verdict(ratios.get(name), now, margin))
        for name, now in measured.ratios.items()
    ]


def _count_verdict(stored: int | None, now: int) -> Verdict:
    if stored is None:
        return "new"
    return "ok" if stored == now else "changed"


def _ratio_verdict(stored: float | None, now: float, margin: float) -> Verdict:
    if stored is None:
        return "new"
    if now > stored * (1 + margin):
        return "slower"
    return "faster" if now < stored / (1 + margin) else "ok"


def update(path: Path, measured: Measured, place: Place) -> None:
    """Store these values for this kind of machine; those of others stay."""
    values = read_values(path)
    values["counts"][str(place.threads)] = measured.counts
    values["ratios"][place.machine] = {
        "date": date.today().isoformat(),
        "commit": place.commit,
        "values": {name: round(ratio, 3) for name, ratio in measured.ratios.items()},
    }
    path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def complaints(lines: list[Line]) -> list[str]:
    """What regressed and by how much, one line each."""
    return [
        f"{line.name}: {_number(line.now)}, stored {_number(line.stored or 0)} ({line.change:+.0%})"
        for line in lines
        if line.verdict in RED
    ]


def gate_table(
    lines: list[Line], measured: Measured, values: dict[str, Any], place: Place
) -> Table:
    """Every comparison. Where something is red only that: no speed-up beside a regression."""
    red = [line for line in lines if line.verdict in RED]
    table = Table(
        title="Gate: " + (f"{len(red)} regressed" if red else "passed"),
        caption=f"ratios of one run, larger is slower, red above stored + {values['margin']:.0%}; "
        f"counts exact; ±: half the middle range of the rounds; {place.machine}, commit "
        f"{place.commit}",
        caption_justify="left",
    )
    table.add_column("what", no_wrap=True)
    for name in ("stored", "now", "±", "change", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for line in red or lines:
        spread = measured.spread.get(line.name)
        table.add_row(
            line.name,
            "-" if line.stored is None else _number(line.stored),
            _number(line.now),
            "" if spread is None else f"{spread:.0%}",
            "-" if line.stored is None else f"{line.change:+.0%}",
            line.verdict,
            style="red" if line.verdict in RED else None,
        )
    return table


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
