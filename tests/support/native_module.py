"""pytest plugin: tests the build of the native core that STEPFUSE_TEST_NATIVE names."""

from __future__ import annotations

import importlib.util
import os
import sys

import stepfuse

_spec = importlib.util.spec_from_file_location(
    "stepfuse._native", os.environ["STEPFUSE_TEST_NATIVE"]
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
sys.modules["stepfuse._native"] = _module
stepfuse._native = _module  # type: ignore[attr-defined]
