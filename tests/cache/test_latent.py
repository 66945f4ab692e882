"""The latent cache: one allocation, views per layer, bytes as planned."""

from __future__ import annotations

import pytest

from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.core.errors import CacheError
from stepfuse.ops.views import KvDtype
from tests.support.geometries import small_k3


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_bytes_and_views(dtype: KvDtype) -> None:
    layout = LatentLayout.of(small_k3(), dtype, 16)
    cache = LatentCache(layout, 5)
    assert layout.layers == 3
    assert cache.data.numel() == 5 * layout.page_bytes
    assert not cache.data.any()
    views = cache.views()
    assert len(views) == 3
    views[1].data[4, 15, 0] = 9
    assert cache.data[1, 4, 15, 0] == 9
    assert int(cache.data.sum()) == 9
    assert (views[0].page_tokens, views[0].latent, views[0].rope) == (16, 64, 16)


def test_refusals() -> None:
    layout = LatentLayout.of(small_k3(), "bf16", 16)
    with pytest.raises(CacheError):
        LatentCache(layout, 0)
    with pytest.raises(CacheError):
        LatentCache(layout, 1).view(3)
