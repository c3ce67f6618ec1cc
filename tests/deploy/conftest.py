"""What the tests of the image and the manifests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy import image

# Kept between runs, and ignored by git: `make clean` removes it.
KEPT = image.ROOT / "build" / "deploy"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test needs a tool first waits for its download."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def base_tree() -> Path:
    """The tree that stands in for the base image."""
    return image.base(KEPT / "base")


@pytest.fixture(scope="session")
def builder(base_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> image.Builder:
    """A builder of this checkout, its stages not yet built."""
    return image.Builder(base_tree, tmp_path_factory.mktemp("image"))
