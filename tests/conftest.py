"""Shared by all tests: where real data may lie, and tiny models that need no download."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import forked
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests run in several processes at once. numpy reads this as it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

settings.register_profile("small", max_examples=25, deadline=None)
settings.load_profile("small")


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks Snakemake and its jobs, one for all workers."""
    if config.getoption("numprocesses", None):
        folder = Path(tempfile.mkdtemp(prefix="python-"))
        server = forked.command(folder)
        os.environ[forked.SHARED] = str(folder / "python")
        config.add_cleanup(server.kill)
        config.add_cleanup(lambda: shutil.rmtree(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first: each runs in one process."""
    first = ["workflow", "golden", "api", "runs", "evaluate", "cli", "choose", "export"]
    first = [f"test_{name}.py" for name in first]
    items.sort(key=lambda item: [*first, item.path.name].index(item.path.name))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data next to the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the folder 'shared' with real data is not next to the checkout")
    return SHARED


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """One thread for torch as well; a command that a test has run may have left it more."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect() -> None:
    """Modules of torch, transformers and the like are left out when Python looks for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Folders of the quickstart's tasks, made of invented articles; `datasets` keeps its copies of
    them out of the user's cache."""
    pytest.importorskip("gensim", reason="package with the data of two of the tasks")
    import datasets
    from helpers.articles import wikipedia

    from quickstart import tasks

    root = tmp_path_factory.mktemp("tasks")
    for task in tasks.TYPES:
        tasks.make_task(root / task, tasks.passages_of(wikipedia()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield {task: str(root / task) for task in tasks.TYPES}
