"""A fingerprint of random weights, so that stored oracle outputs are never held to other inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bits, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
