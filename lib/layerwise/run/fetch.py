"""`layerwise fetch`: fill the caches of models, corpora and tasks from the hub.

Jobs on compute nodes then find everything offline. Files in the cache are not downloaded again.
The commit of each model and data set is recorded, and is part of the keys from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from layerwise.config.corpora import HubData, TaskTexts, data_of
from layerwise.config.models import HubAdapter, HubSource, Model
from layerwise.config.tasks import ChoiceEntry, HubQuestions, MtebEntry, Task
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError
from layerwise.models import saved
from layerwise.models.source import Location, locate, why
from layerwise.run.plan import Plan, place_of
from layerwise.tasks.catalog import get_task, load
from layerwise.tasks.task import of_model

log = logging.getLogger(__name__)

# A model's weights, configuration and tokenizer.
MODEL_FILES: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")

Fetch = Callable[[], dict[str, Any]]


def fetch(plan: Plan) -> int:
    """Fetch all that a run takes from the hub, and record the commits below its results.

    The record of an earlier fetch stays where a later one fails.

    Returns
    -------
    int
        Number of models at a revision and of data sets.

    Raises
    ------
    LayerwiseError
        If anything could not be fetched; the message lists it.
    """
    sources = dict(_sources(plan))
    failures = []
    for names, download in sources.items():
        try:
            plan.resolved[plan.record(*names)] = download()
        except LayerwiseError as error:
            failures.append(str(error))
    plan.write_records()
    if failures:
        raise LayerwiseError(
            f"{len(failures)} of {len(sources)} were not fetched; start again, what is there is "
            "not fetched twice:\n" + "\n".join(failures),
            code="unreadable",
        )
    return len(sources)


def _sources(plan: Plan) -> Iterator[tuple[tuple[str, ...], Fetch]]:
    """Names of a record, and the function that fetches the source and returns its record."""
    config = plan.config
    for model, entry in config.models.items():
        sources = (entry.source, *entry.adapters)
        if any(isinstance(source, HubSource | HubAdapter) for source in sources):
            for revision in entry.revisions:
                yield ("models", model, revision), partial(fetch_model, entry, revision)
    data = {name: data_of(corpus.source) for name, corpus in config.corpora.items()}
    for name, source in data.items():
        if isinstance(source, HubData):
            yield ("corpora", name), partial(fetch_corpus, source)
    tasks = {source.task: MtebEntry() for source in data.values() if isinstance(source, TaskTexts)}
    for task, settings in (tasks | config.tasks).items():
        of_hub = isinstance(getattr(settings, "questions", None), HubQuestions)
        if of_hub or settings == MtebEntry():
            yield ("tasks", task), partial(fetch_task, task, settings)


def fetch_corpus(source: HubData) -> dict[str, Any]:
    """Fetch the data set of a corpus and return its commit."""
    data, facts = load_hub(source)
    log.info("%s: %d rows", source.hub, len(data))
    return {"of": place_of(source), "commit": facts.get("commit", "")}


def fetch_task(name: str, entry: Task) -> dict[str, Any]:
    """Fetch the data set of a task and return its revision."""
    if isinstance(entry, ChoiceEntry) and isinstance(entry.questions, HubQuestions):
        hub = entry.questions
        commit = ""
        for split in [hub.split, *([hub.examples] if entry.shots else [])]:
            data, facts = load_hub(hub.model_copy(update={"split": split}))
            log.info("%s, %s: %d questions", hub.hub, split, len(data))
            commit = facts.get("commit", "")
        return {"of": place_of(hub), "commit": commit}
    dataset = load(get_task(name)).metadata.dataset
    log.info("%s: %s", name, dataset["path"])
    return {"commit": str(dataset.get("revision") or "")}


def fetch_model(model: Model, revision: str) -> dict[str, Any]:
    """Fetch a model at a revision, with its adapters, and return their commits."""
    adapters = {
        place_of(adapter): _snapshot(adapter.hub, adapter.revision, ADAPTER_FILES)
        for adapter in model.adapters
        if isinstance(adapter, HubAdapter)
    }
    commits = {"adapters": adapters} if adapters else {}
    if not isinstance(model.source, HubSource):
        return commits
    gguf = model.source.gguf_file
    patterns = ("*.json", gguf) if gguf else MODEL_FILES
    if model.trust_remote_code:
        patterns += ("*.py",)
    commit = _snapshot(model.source.hub, revision, patterns)
    # Evaluation reads a model's prompts, pooling and modules.
    of_model(model, revision)
    saved.embedder(locate(model.source, revision), model.source.hub)
    return {"of": place_of(model.source, revision), "commit": commit, **commits}


def _snapshot(repository: str, revision: str, patterns: Sequence[str]) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Folders of a repository hold exports to other frameworks.
    ignored = [] if any(pattern.endswith(".gguf") for pattern in patterns) else ["*/*"]
    wanted: Any = {"allow_patterns": list(patterns), "ignore_patterns": ignored}
    try:
        folder = Path(snapshot_download(repository, revision=revision, **wanted))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise LayerwiseError(
            f"Model {repository} at {revision!r}: {why(error, Location(repository, revision))}",
            code="unreadable",
        ) from error
    if not any(folder.glob("*.safetensors")) and not any(folder.rglob("*.gguf")):
        raise LayerwiseError(
            f"Model {repository} at {revision!r} has no safetensors, and pickle files are not "
            "read; convert it and give it as a local folder.",
            code="unsafe",
        )
    log.info("%s at %s: commit %s", repository, revision, folder.name)
    return folder.name
