"""`layerwise fetch`: fill the caches of models, corpora and tasks from the hub.

Jobs on compute nodes then find everything offline. Files in the cache are not downloaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from layerwise.config.corpora import HubData, TaskTexts, data_of
from layerwise.config.models import HubAdapter, HubSource, Model
from layerwise.config.tasks import CustomEntry, MtebEntry
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError
from layerwise.models import saved
from layerwise.models.load import reading
from layerwise.models.source import Location, locate, why
from layerwise.run.plan import Plan
from layerwise.tasks.catalog import get_task, load

log = logging.getLogger(__name__)

# A model's weights, configuration and tokenizer.
MODEL_FILES: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def fetch(plan: Plan) -> int:
    """Fetch all that a run takes from the hub.

    Returns
    -------
    int
        Number of models at a revision and of data sets.

    Raises
    ------
    LayerwiseError
        If anything could not be fetched; the message lists it.
    """
    downloads = list(_downloads(plan))
    failures = []
    for download in downloads:
        try:
            download()
        except LayerwiseError as error:
            failures.append(str(error))
    if failures:
        raise LayerwiseError(
            f"{len(failures)} of {len(downloads)} were not fetched; start again, what is there is "
            "not fetched twice:\n" + "\n".join(failures),
            code="unreadable",
        )
    return len(downloads)


def _downloads(plan: Plan) -> Iterator[Callable[[], None]]:
    """Functions that fetch a model at a revision, or a data set."""
    config = plan.config
    for entry in config.models.values():
        sources = (entry.source, *entry.adapters)
        if any(isinstance(source, HubSource | HubAdapter) for source in sources):
            for revision in entry.revisions:
                yield partial(fetch_model, entry, revision)
    data = [data_of(corpus.source) for corpus in config.corpora.values()]
    for source in data:
        if isinstance(source, HubData):
            yield partial(fetch_data, source)
    tasks = {source.task: MtebEntry() for source in data if isinstance(source, TaskTexts)}
    for task, settings in (tasks | config.tasks).items():
        if settings == MtebEntry():
            yield partial(fetch_task, task)
        if isinstance(settings, CustomEntry):
            yield from (partial(fetch_data, data) for data in settings.data_sets)


def fetch_data(source: HubData) -> None:
    """Fetch a data set of a corpus or a task."""
    data, facts = load_hub(source)
    log.info("%s: %d rows, commit %s", source.hub, len(data), facts.get("commit", "unknown"))


def fetch_task(name: str) -> None:
    """Fetch the data set of a task of mteb."""
    log.info("%s: %s", name, load(get_task(name)).metadata.dataset["path"])


def fetch_model(model: Model, revision: str) -> None:
    """Fetch a model at a revision, with its adapters."""
    for adapter in model.adapters:
        if isinstance(adapter, HubAdapter):
            _snapshot(adapter.hub, adapter.revision, ADAPTER_FILES)
    if not isinstance(model.source, HubSource):
        return
    gguf = model.source.gguf_file
    patterns = ("*.json", gguf) if gguf else MODEL_FILES
    if model.trust_remote_code:
        patterns += ("*.py",)
    # Folders of sentence-transformers' modules, of which one may hold the weights.
    location = locate(model.source, revision)
    with reading(f"Model {model.source.hub} at {revision!r}", location):
        modules = saved.entries(location)
    for folder in {module.get("path") for module in modules} - {"", None}:
        files = [f"{folder}/{pattern}" for pattern in (*MODEL_FILES, "pytorch_model.bin")]
        _snapshot(model.source.hub, revision, files)
    _snapshot(model.source.hub, revision, patterns)


def _snapshot(repository: str, revision: str, patterns: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Folders of a repository hold exports to other frameworks.
    inside = "/" in patterns[0]
    ignored = [] if inside or any(p.endswith(".gguf") for p in patterns) else ["*/*"]
    wanted: Any = {"allow_patterns": list(patterns), "ignore_patterns": ignored}
    try:
        folder = Path(snapshot_download(repository, revision=revision, **wanted))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise LayerwiseError(
            f"Model {repository} at {revision!r}: {why(error, Location(repository, revision))}",
            code="unreadable",
        ) from error
    weights = chain(folder.rglob("*.safetensors"), folder.rglob("*.gguf"))
    if not inside and not any(weights):
        raise LayerwiseError(
            f"Model {repository} at {revision!r} has no safetensors, and pickle files are not "
            "read; convert it and give it as a local folder.",
            code="unsafe",
        )
    log.info("%s at %s: commit %s", repository, revision, folder.name)
