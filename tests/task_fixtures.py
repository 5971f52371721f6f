"""What tests of tasks and scores share: the quickstart's tasks, made of invented articles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from articles import wikipedia

from layerwise.tasks import names, quickstart


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of all five tasks."""
    root = tmp_path_factory.mktemp("tasks")
    pytest.importorskip("gensim", reason="package with the data of two of the tasks")
    quickstart.make_tasks(wikipedia(), list(names.QUICKSTART), root)
    return {task: str(root / task) for task in names.QUICKSTART}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the copies that `datasets` makes of what the tests load out of the user's cache."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield
