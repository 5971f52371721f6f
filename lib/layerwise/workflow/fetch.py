"""Fill the caches of models, corpora and tasks, on a machine that reaches the hub.

Jobs on compute nodes then find everything offline. Files in the cache are not downloaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerwise.config import Config
from layerwise.config.corpora import HubTexts, TaskTexts
from layerwise.config.images import HubImages
from layerwise.config.models import HubAdapter, HubSource, Model
from layerwise.config.tasks import ChoiceEntry, HubQuestions, MtebEntry, Task
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError
from layerwise.models import saved
from layerwise.models.failures import why
from layerwise.models.source import Location, locate
from layerwise.tasks.catalog import get_task, load
from layerwise.tasks.names import QUICKSTART
from layerwise.tasks.prompts import of_model
from layerwise.tasks.questions import of_hub

log = logging.getLogger(__name__)

# A model's weights, configuration and tokenizer.
MODEL_FILES: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def fetch_all(config: Config) -> None:
    """Fetch everything that a config takes from the hub.

    Raises
    ------
    LayerwiseError
        If the hub cannot be reached, or lacks something.
    """
    for model in config.models.values():
        fetch_model(model)
    sources = [corpus.source for corpus in config.corpora.values()]
    for source in sources:
        if isinstance(source, HubImages | HubTexts):
            log.info("%s: %d rows", source.hub, len(load_hub(source)[0]))
    tasks: dict[str, Task] = {s.task: MtebEntry() for s in sources if isinstance(s, TaskTexts)}
    for name, task in {**tasks, **config.tasks}.items():
        if task == MtebEntry() and name not in QUICKSTART:
            log.info("%s: %s", name, load(get_task(name)).metadata.dataset["path"])
        elif isinstance(task, ChoiceEntry) and isinstance(task.questions, HubQuestions):
            hub = task.questions
            for split in [hub.split, *([hub.examples] if task.shots else [])]:
                log.info("%s, %s: %d questions", hub.hub, split, len(of_hub(hub, split)))


def fetch_model(model: Model) -> None:
    """Fetch a model at all its revisions, and its adapters."""
    for adapter in model.adapters:
        if isinstance(adapter, HubAdapter):
            _snapshot(adapter.hub, adapter.revision, ADAPTER_FILES)
    if not isinstance(model.source, HubSource):
        return
    gguf = model.source.gguf_file
    patterns = ("*.json", gguf) if gguf else MODEL_FILES
    if model.trust_remote_code:
        patterns += ("*.py",)
    for revision in model.revisions:
        _snapshot(model.source.hub, revision, patterns)
        # Evaluation reads a model's prompts and its Normalize module.
        of_model(model, revision)
        saved.normalizes(locate(model.source, revision))


def _snapshot(repository: str, revision: str, patterns: Sequence[str]) -> None:
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
