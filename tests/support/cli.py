"""Running the console entry point inside the test process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from stepfuse.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str


def run_cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Result:
    """What `stepfuse ARGUMENTS` prints and returns."""
    monkeypatch.setattr(sys, "argv", ["stepfuse", *arguments])
    code = 0
    try:
        main()
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)
