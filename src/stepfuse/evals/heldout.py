"""The held-out file of a model: texts it never saw, and tasks with exact answers.

JSON lines, gzipped: `{"kind": "text", "text": ...}` or `{"kind": "recall" | ..., "prompt": ...,
"answer": ...}`, where the prompt ends where the answer begins and the answer ends with its line.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from stepfuse.core.errors import CheckpointError

HELDOUT_FILE = "heldout.jsonl.gz"
TEXT_KINDS = frozenset({"text", "source", "doc"})


@dataclass(frozen=True, slots=True)
class Task:
    """`answer` is what must follow `prompt`, its line end included."""

    kind: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Heldout:
    texts: tuple[str, ...]
    tasks: tuple[Task, ...]


def read_heldout(path: Path) -> Heldout:
    """Read a held-out file (or the one in a checkpoint folder). CheckpointError when it is not."""
    file = path / HELDOUT_FILE if path.is_dir() else path
    texts: list[str] = []
    tasks: list[Task] = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                if item["kind"] in TEXT_KINDS:
                    texts.append(item["text"])
                else:
                    tasks.append(Task(item["kind"], item["prompt"], item["answer"]))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: not a held-out file ({error!r})") from error
    return Heldout(tuple(texts), tuple(tasks))
