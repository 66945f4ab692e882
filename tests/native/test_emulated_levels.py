"""The AVX-512 levels on emulated intrinsics: every kernel test on a processor without AVX-512."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_kernels_of_the_avx512_levels() -> None:
    """Builds build/emulated (minutes the first time) and runs the level tests on it."""
    build = ROOT / "build" / "emulated"
    configure = [
        "cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
        "-DSTEPFUSE_EMULATE_AVX512=ON", f"-DPython_EXECUTABLE={sys.executable}",
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    subprocess.run(configure, check=True, env=environment, capture_output=True)
    subprocess.run(["cmake", "--build", str(build)], check=True, env=environment)
    (module,) = build.glob("_native*.so")
    environment |= {
        "STEPFUSE_TEST_NATIVE": str(module),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    tests = [str(p) for p in sorted((ROOT / "tests" / "ops").glob("test_*_levels.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.native_module", *tests]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    assert "skipped" not in result.stdout.splitlines()[-1]
