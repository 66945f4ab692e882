"""Text for training: the standard library's sources and their documentation strings.

Files are taken in sorted order, without tests and generated tables, and split by the hash of
their content, so the same Python release always gives the same training and held-out sets.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Tests hold odd data, encodings are generated tables, site-packages are not the standard library;
# _sysconfigdata lists the paths of the machine that built Python.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
HELD_OUT_ONE_IN = 50


@dataclass(frozen=True)
class Piece:
    """One text: a source file, or the documentation strings of one."""

    name: str
    kind: str  # "source" or "doc"
    text: str
    held_out: bool


def corpus() -> list[Piece]:
    """Every piece of the running Python's standard library, in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    pieces: list[Piece] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED & set(name.parts) or name.name.startswith("_sysconfigdata"):
            continue
        pieces += _pieces(path, name.as_posix())
    return pieces


def _pieces(path: Path, name: str) -> list[Piece]:
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return []
    if len(text) < 200:
        return []
    digest = int.from_bytes(hashlib.sha256(raw).digest()[:8], "big")
    held_out = digest % HELD_OUT_ONE_IN == 0
    found = [Piece(name, "source", text, held_out)]
    docs = _doc_text(text)
    if len(docs) >= 200:
        found.append(Piece(name, "doc", docs, held_out))
    return found


def _doc_text(source: str) -> str:
    """Documentation strings in source order, one paragraph each, headed by the owner's name."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    parts: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc and len(doc) > 40:
                name = "" if isinstance(node, ast.Module) else f"{node.name}: "
                parts.append(f"{name}{doc}\n\n")
    return "".join(parts)
