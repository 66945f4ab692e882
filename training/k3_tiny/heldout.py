"""The held-out set: text of held-out files in pieces, and task instances with their answers.

`heldout.jsonl.gz` holds one JSON object a line:

    {"kind": "source" | "doc", "name": FILE, "text": TEXT}
    {"kind": "recall" | "copy" | "sum", "prompt": TEXT, "answer": TEXT, "gap_tokens": N}

Each text and each prompt is encoded as it is, behind [BOS]. A task is solved when the greedy
continuation of the prompt begins with the answer, line end included.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiktoken

from training.k3_tiny import data
from training.k3_tiny.tasks import Writer

PIECE_CHARS = 3000
GAPS = (0, 50, 100, 200, 400)
RECALLS_PER_GAP, DEFINITIONS = 60, 4
COPIES = SUMS = 200
SEED = 20_260_101


def write(encoding: tiktoken.Encoding, path: Path) -> None:
    """Write the whole held-out set; the same Python release gives the same bytes."""
    pieces = [p for p in data.corpus() if p.held_out]
    lines = [*_texts(pieces), *_tasks(encoding, pieces)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(path: Path) -> list[dict[str, Any]]:
    """Every object of a held-out file, in order."""
    text = gzip.decompress(path.read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def _texts(pieces: list[data.Piece]) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        part = ""
        for line in piece.text.splitlines(keepends=True):
            if part and len(part) + len(line) > PIECE_CHARS:
                yield {"kind": piece.kind, "name": piece.name, "text": part}
                part = ""
            part += line
        yield {"kind": piece.kind, "name": piece.name, "text": part}


def _tasks(encoding: tiktoken.Encoding, pieces: list[data.Piece]) -> Iterator[dict[str, Any]]:
    rng = random.Random(SEED)
    writer = Writer(encoding, rng)
    sources = [p.text.splitlines(keepends=True) for p in pieces if p.kind == "source"]
    for gap in GAPS:
        for _ in range(RECALLS_PER_GAP):
            text = _filler(encoding, rng.choice(sources), gap, rng)
            task = writer.recall(DEFINITIONS, text)
            yield {**vars(task), "gap_tokens": len(encoding.encode_ordinary(text))}
    for make, count in ((writer.copy, COPIES), (writer.sum, SUMS)):
        for _ in range(count):
            yield {**vars(make()), "gap_tokens": 0}


def _filler(encoding: tiktoken.Encoding, lines: list[str], gap: int, rng: random.Random) -> str:
    """Whole lines of a file with `gap` tokens at least, or what is left of the file."""
    if gap == 0:
        return ""
    at, count, text = rng.randrange(max(1, len(lines) - gap // 4)), 0, ""
    while count < gap and at < len(lines):
        text += lines[at]
        count += len(encoding.encode_ordinary(lines[at]))
        at += 1
    return text
