"""Fill the caches of models, corpora and tasks, on a machine that reaches the hub.

Jobs on compute nodes then find everything offline. What is in the cache already is not fetched
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerwise.config import Config
from layerwise.config.corpora import HubTexts
from layerwise.config.images import HubImages
from layerwise.config.models import HubAdapter, Model
from layerwise.config.tasks import ChoiceTask, HubQuestions, MtebTask
from layerwise.errors import LayerwiseError
from layerwise.models.failures import why
from layerwise.models.source import Location
from layerwise.tasks.names import QUICKSTART
from layerwise.tasks.prompts import normalizes, of_model

log = logging.getLogger(__name__)

# Weights as safetensors alone, and what else a model and its tokenizer are read from.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
CODE_FILES = ("*.py",)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
WEIGHTS = ("*.safetensors", "**/*.gguf")


def fetch_all(config: Config) -> None:
    """Fetch all that a config takes from the hub; what is in the caches is not fetched again.

    Raises
    ------
    LayerwiseError
        If the hub cannot be reached, or lacks something.
    """
    for entry in config.models.values():
        if any(hasattr(source, "hub") for source in (entry.source, *entry.adapters)):
            for revision in entry.revisions:
                fetch_model(entry, revision)
    for corpus in config.corpora.values():
        if isinstance(corpus.source, HubTexts | HubImages):
            fetch_corpus(corpus.source)
    for name, task in config.tasks.items():
        if isinstance(task, ChoiceTask):
            if isinstance(task.questions, HubQuestions):
                fetch_questions(task)
        elif isinstance(task, MtebTask) and task.folder is None and name not in QUICKSTART:
            fetch_task(name)


def fetch_model(model: Model, revision: str) -> dict[str, Any]:
    """Fetch what a model's entry takes from the hub: the model at a revision, and its adapters.

    Parameters
    ----------
    model : Model
        The model's config entry, with a ``hub`` in its ``source`` or in an adapter.

    Returns
    -------
    dict
        ``repository``, ``revision``, ``commit``, ``bytes`` in the cache of a model of the hub; a
        list ``adapters`` of the same, if there are any.

    Raises
    ------
    LayerwiseError
        If the hub cannot be reached, has no such model or revision, or has no weights as
        safetensors.
    """
    adapters = [
        _snapshot(adapter.hub, adapter.revision, ADAPTER_FILES)
        for adapter in model.adapters
        if isinstance(adapter, HubAdapter)
    ]
    fetched: dict[str, Any] = {}
    if hasattr(model.source, "hub") or not adapters:
        gguf = model.source.gguf_file
        code = CODE_FILES if model.trust_remote_code else ()
        patterns = ("*.json", gguf) if gguf else (*MODEL_FILES, *code)
        fetched = _snapshot(_hub(model.source), revision, patterns)
        # Evaluation reads these files, so that the cache has to have them.
        of_model(model, revision)
        normalizes(model, revision)
    return {**fetched, "adapters": adapters} if adapters else fetched


def _hub(source: Any) -> str:
    if not hasattr(source, "hub"):
        raise LayerwiseError(
            f"The source {source.plain()} is not on the hub; nothing is to fetch."
        )
    return str(source.hub)


def _snapshot(repository: str, revision: str, patterns: Sequence[str]) -> dict[str, Any]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # An export to another framework lies in a folder of its own and is never read.
    ignored = [] if any(p.endswith(".gguf") for p in patterns) else ["*/*"]
    try:
        folder = Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=ignored,
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise LayerwiseError(
            f"Model {repository} at {revision!r}: {why(error, Location(repository, revision))}"
        ) from error
    weights = [file for pattern in WEIGHTS for file in folder.glob(pattern)]
    if not weights:
        raise LayerwiseError(
            f"Model {repository} at {revision!r} has no weights as safetensors there, and pickle "
            "files are not read; convert it and give it as a local folder."
        )
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    log.info("%s at %s: commit %s, %.2f GB", repository, revision, folder.name, size / 1e9)
    return {
        "repository": repository,
        "revision": revision,
        "commit": folder.name,
        "bytes": size,
    }


def fetch_corpus(source: HubTexts | HubImages) -> dict[str, Any]:
    """Fetch a data set of the hub, as a corpus' ``source`` names it.

    Raises
    ------
    LayerwiseError
        As `corpora.sources.open_texts` or `corpora.image_sources.open_images`.
    """
    from layerwise.corpora.image_sources import open_images
    from layerwise.corpora.sources import open_texts

    _hub(source)
    if isinstance(source, HubImages):
        images = open_images(source)
        log.info("%s: %d images", _hub(source), len(images.ids))
        return {**source.plain(), **images.facts, "rows": len(images.ids)}
    rows = open_texts(source)
    log.info("%s: %d rows", _hub(source), rows.total)
    return {**source.plain(), **rows.facts, "rows": rows.total}


def fetch_questions(task: ChoiceTask) -> dict[str, Any]:
    """Fetch the questions of a multiple-choice task, and its examples if it shows any.

    Returns
    -------
    dict
        ``dataset``, ``revision``, and ``rows`` by split.

    Raises
    ------
    LayerwiseError
        If they are not on the hub, or it cannot be reached.
    """
    from layerwise.tasks.questions import of_hub

    source = getattr(task, "questions", None)
    if not isinstance(source, HubQuestions):
        raise LayerwiseError("The items of this task are not on the hub; nothing is to fetch.")
    splits = [source.split, *([source.examples] if task.shots else [])]
    rows = {split: len(of_hub(source, split)) for split in splits}
    return {"dataset": source.hub, "revision": source.revision, "rows": rows}


def fetch_task(task: str) -> dict[str, Any]:
    """Fetch the data of an MTEB task.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.catalog.get_task` and `layerwise.tasks.catalog.load`.
    """
    from layerwise.tasks.catalog import get_task, load

    loaded = load(get_task(task))
    dataset = loaded.metadata.dataset
    log.info("%s: %s", task, dataset["path"])
    return {"task": task, "data_set": dataset["path"], "revision": dataset.get("revision")}
