"""Loggers below `stepfuse`, silent until the application that uses the library wants them."""

from __future__ import annotations

import logging

_ROOT = "stepfuse"
logging.getLogger(_ROOT).addHandler(logging.NullHandler())


def logger(room: str) -> logging.Logger:
    """The logger of a room ("engine" logs as `stepfuse.engine`)."""
    return logging.getLogger(f"{_ROOT}.{room}")
