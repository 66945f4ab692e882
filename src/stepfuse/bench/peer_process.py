"""A peer in its own process: started, asked for times one request at a time, and stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from stepfuse.bench import peer_llama_cpp, peer_pytorch
from stepfuse.core.errors import StepfuseError

Kind = Literal["decode", "verify", "prefill"]


class PeerError(StepfuseError):
    """A peer that is not installed, or stopped answering."""


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """What every peer is started with. `python` and `work`: the peers' own interpreter, and where
    converted checkpoints are kept; `tokens`: the longest text of one sequence.
    """

    checkpoint: Path
    threads: int
    tokens: int
    python: Path
    work: Path
    allow_keys: tuple[str, ...] = ()


class Peer(Protocol):
    """One side of the bench. A context manager: leaving it ends the process."""

    name: str

    def times_ms(self, kind: Kind, rows: int, steps: int) -> list[float]: ...
    def cpu_seconds(self) -> float: ...


class PeerProcess:
    """A process that answers `{"kind", "rows", "steps"}` lines with `{"ms": [...]}` lines."""

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        try:
            self._answer()
        except BaseException:
            self._process.kill()
            raise

    def times_ms(self, kind: Kind, rows: int, steps: int) -> list[float]:
        """Milliseconds of `steps` steps: of `rows` sequences (decode), of one sequence of `rows`
        tokens (verify), or of prompts of `rows` tokens (prefill).
        """
        assert self._process.stdin is not None
        request = {"kind": kind, "rows": rows, "steps": steps}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `_answer` says with which code it stopped
        return [float(ms) for ms in self._answer()["ms"]]

    def cpu_seconds(self) -> float:
        """Processor time of the process so far, all threads; 0 where the system does not say."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.is_file():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _answer(self) -> dict[str, list[float]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} stopped with exit code {self._process.wait()}")
        answer: dict[str, list[float]] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()


def start_pytorch(choice: PeerChoice) -> PeerProcess:
    """Eager PyTorch under this interpreter."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        peer_pytorch.__name__,
        "serve",
        choice.checkpoint,
    ]
    command += ["--threads", str(choice.threads)]
    command += [f"--allow={key}" for key in choice.allow_keys]
    return PeerProcess("pytorch", command)


def start_llama_cpp(choice: PeerChoice) -> PeerProcess:
    """llama.cpp under the peers' interpreter; converts the checkpoint when it is new.

    Raises PeerError where llama.cpp is not built or cannot convert.
    """
    if not choice.python.exists():
        raise PeerError(f"{choice.python} is not there: build the peers first (make peers)")
    gguf = choice.work / f"{choice.checkpoint.resolve().name}.gguf"
    if not gguf.exists():
        choice.work.mkdir(parents=True, exist_ok=True)
        _convert(choice, gguf)
    command: list[str | Path] = [choice.python, peer_llama_cpp.__file__, "serve", gguf]
    command += ["--threads", str(choice.threads), "--tokens", str(choice.tokens)]
    return PeerProcess("llama.cpp", command)


def _convert(choice: PeerChoice, gguf: Path) -> None:
    sources = sorted(choice.python.parents[1].glob("src/*/vendor/llama.cpp"))
    if not sources:
        raise PeerError(f"{choice.python}: llama.cpp's converter is missing (make peers)")
    partial = gguf.with_suffix(".part")
    command: list[str | Path] = [choice.python, peer_llama_cpp.__file__, "convert"]
    command += [choice.checkpoint, partial, "--source", sources[-1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"llama.cpp cannot convert {choice.checkpoint}: {done.stderr[-2000:]}")
    partial.rename(gguf)


STARTS = {"llama.cpp": start_llama_cpp, "pytorch": start_pytorch}
