from __future__ import annotations

from pathlib import Path

import pytest

from stepfuse.core.errors import CheckpointError
from stepfuse.engine.location import resolve_model


def test_a_folder_with_a_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K3", "/nowhere/at/all"])
def test_what_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"is not a folder.*k3-tiny"):
        resolve_model(name)
