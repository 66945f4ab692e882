"""Where a model is: a checkpoint folder, or the name of a bundled one."""

from __future__ import annotations

from pathlib import Path

import stepfuse
from stepfuse.core.errors import CheckpointError

BUNDLED = {"k3-tiny": "k3_tiny"}


def resolve_model(name_or_path: str | Path) -> Path:
    """The folder of a checkpoint. CheckpointError when there is none of that name or path."""
    text = str(name_or_path)
    if text in BUNDLED:
        folder = Path(stepfuse.__file__).parent / "bundled" / BUNDLED[text]
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{text} is not in this installation ({folder} has no config.json): install "
                "stepfuse with its bundled model, or run `make k3-tiny` in the source tree"
            )
        return folder
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f"{text} is not a folder: give a downloaded checkpoint's folder, or "
            f"{' or '.join(BUNDLED)} for a bundled model"
        )
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json: it is not a checkpoint folder")
    return folder


def model_name(name_or_path: str | Path) -> str:
    """What figures call the model: the bundled name, or the folder's."""
    text = str(name_or_path)
    return text if text in BUNDLED else Path(text).expanduser().resolve().name
