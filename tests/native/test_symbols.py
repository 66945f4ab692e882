"""Level objects share nothing: of two weak symbols the linker may keep the wrong level's."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
WIDE = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mbmi2"],
    "avx512": WIDE,
    "avx512_bf16": [*WIDE, "-mavx512bf16", "-mavx512vnni"],
}
COMMON = ["-std=c++20", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]


@pytest.mark.parametrize("level", FLAGS)
def test_a_level_object_defines_only_its_table(level: str, tmp_path: Path) -> None:
    # Without optimisation every inline function that is used becomes a symbol.
    compiler, nm = shutil.which("c++"), shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("no compiler or nm here")
    if level != "scalar" and platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip(f"{level} is an x86-64 level")
    target = tmp_path / "level.o"
    source = NATIVE / "levels" / level / "level.cc"
    includes = [f"-I{NATIVE}", f"-I{NATIVE / 'include'}"]
    command = [compiler, *COMMON, "-O0", *FLAGS[level], *includes, "-c", str(source)]
    subprocess.run([*command, "-o", str(target)], check=True, capture_output=True)
    listing = subprocess.run(
        [nm, "-C", "--defined-only", str(target)], check=True, capture_output=True, text=True
    ).stdout
    # Lower case is local; w and v are weak, u is unique.
    shared = [
        line.split(maxsplit=2)[1:]
        for line in listing.splitlines()
        if line.split(maxsplit=2)[1] not in "tdrb"
    ]
    assert shared == [["T", f"stepfuse::{level}_table()"]]
