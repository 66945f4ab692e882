"""The environment variables stepfuse reads, and what it refuses in them."""

from __future__ import annotations

import pytest

from stepfuse.core.env import forced_level, threads
from stepfuse.core.errors import ConfigError


@pytest.mark.parametrize("text", [None, ""])
def test_unset_means_none(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    for name in ("STEPFUSE_LEVEL", "STEPFUSE_THREADS"):
        monkeypatch.delenv(name, raising=False)
        if text is not None:
            monkeypatch.setenv(name, text)
    assert forced_level() is None
    assert threads() is None


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFUSE_LEVEL", "avx2")
    monkeypatch.setenv("STEPFUSE_THREADS", "12")
    assert forced_level() == "avx2"
    assert threads() == 12


@pytest.mark.parametrize("text", ["0", "257", "-1", "1.5", "two", "¹"])
def test_thread_counts_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STEPFUSE_THREADS", text)
    with pytest.raises(ConfigError, match="use 1 to 256"):
        threads()


@pytest.mark.parametrize("text", ["AVX2", "sse", "avx512 "])
def test_unknown_levels_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STEPFUSE_LEVEL", text)
    with pytest.raises(ConfigError, match="avx512_bf16"):
        forced_level()
