"""The gate: what is red, what is stored, and a whole run on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stepfuse.bench import gate
from stepfuse.bench.machine import machine_class
from tests.support.cli import run_cli
from tests.support.tiny import TINY_K3

gate_measure = pytest.importorskip("stepfuse.bench.gate_measure")
Measured, GateError = gate_measure.Measured, gate_measure.GateError

PLACE = gate.Place(2, "a machine", "abc")
BASE = Measured({"stages": 10}, {"step / roof": 1.2, "a / b": 0.5}, {"step / roof": 0.1})


def _stored(path: Path) -> dict:
    gate.update(path, BASE, PLACE)
    return gate.read_values(path)


@pytest.mark.parametrize(
    ("counts", "ratios", "verdicts"),
    [
        ({"stages": 10}, {"step / roof": 1.2, "a / b": 0.5}, ["ok", "ok", "ok"]),
        ({"stages": 10}, {"step / roof": 1.49, "a / b": 0.5}, ["ok", "ok", "ok"]),
        ({"stages": 10}, {"step / roof": 1.51, "a / b": 0.5}, ["ok", "slower", "ok"]),
        ({"stages": 10}, {"step / roof": 0.9, "a / b": 0.5}, ["ok", "faster", "ok"]),
        ({"stages": 11}, {"step / roof": 1.2, "a / b": 0.7}, ["changed", "ok", "slower"]),
        ({"stages": 9}, {"step / roof": 1.2, "c / d": 9.0}, ["changed", "ok", "new"]),
    ],
)
def test_verdicts(counts: dict, ratios: dict, verdicts: list[str], tmp_path: Path) -> None:
    values = _stored(tmp_path / "values.json")
    assert values["margin"] == 0.25
    lines = gate.compare(Measured(counts, ratios, {}), values, PLACE)
    assert [line.verdict for line in lines] == verdicts
    red = [line.name for line in lines if line.verdict in ("slower", "changed")]
    assert [text.split(":")[0] for text in gate.complaints(lines)] == red


def test_a_complaint_says_by_how_much(tmp_path: Path) -> None:
    values = _stored(tmp_path / "values.json")
    slow = replace(BASE, ratios={"step / roof": 1.8, "a / b": 0.5})
    lines = gate.compare(slow, values, PLACE)
    assert gate.complaints(lines) == ["step / roof: 1.800, stored 1.200 (+50%)"]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(gate.gate_table(lines, slow, values, PLACE))
    text = capture.get()
    assert "1 regressed" in text
    # Nothing good is shown beside a regression.
    assert "a / b" not in text


def test_values_of_other_machines_stay(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    _stored(path)
    gate.update(path, BASE, gate.Place(4, "another", "def"))
    values = gate.read_values(path)
    assert set(values["counts"]) == {"2", "4"}
    assert set(values["ratios"]) == {"a machine", "another"}
    elsewhere = gate.compare(BASE, values, gate.Place(2, "a third", ""))
    assert [line.verdict for line in elsewhere] == ["ok", "new", "new"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "not a file of gate values"),
        ("[]", "not a file of gate values"),
        ('{"format": 1}', "not a file of gate values"),
        ('{"format": 7, "margin": 1, "counts": {}, "ratios": {}}', "format 7, this version reads"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    path.write_text(text)
    with pytest.raises(GateError, match=message):
        gate.read_values(path)


def test_the_projects_own_values_can_be_read() -> None:
    values = gate.read_values(gate.VALUES)
    assert values["counts"]
    assert values["ratios"]


def test_the_better_of_two_measurements() -> None:
    other = Measured({"stages": 10}, {"step / roof": 1.1, "a / b": 0.6}, {"step / roof": 0.3})
    first = replace(BASE, spread={"step / roof": 0.1, "a / b": 0.2})
    better = first.better_of(other)
    assert better.ratios == {"step / roof": 1.1, "a / b": 0.5}
    assert better.spread == {"step / roof": 0.3, "a / b": 0.2}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_measure, "SHAPE", TINY_K3)


@pytest.mark.usefixtures("_tiny")
def test_a_run_passes_after_itself_and_fails_when_something_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "values.json"
    command = ("bench", "gate", "--rounds", "1", "--values", str(path))
    result = run_cli(monkeypatch, capsys, *command)
    assert result.code == 0
    assert "nothing is stored" in result.err
    assert run_cli(monkeypatch, capsys, *command, "--update").code == 0
    values = json.loads(path.read_text())
    values["margin"] = 1000.0  # times of a model this small say nothing
    path.write_text(json.dumps(values))
    assert run_cli(monkeypatch, capsys, *command).code == 0
    values["counts"]["2"]["barriers"] -= 1
    path.write_text(json.dumps(values))
    result = run_cli(monkeypatch, capsys, *command)
    assert result.code == 1
    assert "regressed: barriers" in result.err
    assert "specialized / standard" not in result.out


@pytest.mark.usefixtures("_tiny")
def test_wrong_results_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with gate_measure.subject(2) as subject:
        first = gate_measure.counts(subject)
        assert first == gate_measure.counts(subject)
        gate_measure.check_agreement(subject)
        logits = gate_measure._logits
        monkeypatch.setattr(
            gate_measure,
            "_logits",
            lambda s, r: logits(s, r) * (1.0 if r is s.standard else 1.1),
        )
        with pytest.raises(GateError, match="off the standard path"):
            gate_measure.measure(subject, 1, lambda _: None)


def test_a_machine_class_names_what_ratios_depend_on() -> None:
    text = machine_class(2, "avx2")
    assert text.endswith(", 2 threads, avx2")
    assert len(text) > len(", 2 threads, avx2")
