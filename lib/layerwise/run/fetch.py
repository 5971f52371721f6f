"""Fill the caches of models, corpora and tasks, on a machine that reaches the hub.

Jobs on compute nodes then find everything offline. Files in the cache are not downloaded again.
The commit of each model and data set is recorded, and is part of the keys from then on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layerwise.config.corpora import HubMedia, HubTexts
from layerwise.config.models import HubAdapter, HubSource, Model
from layerwise.config.tasks import ChoiceEntry, HubQuestions, Task
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError
from layerwise.io.files import replacing
from layerwise.models import saved
from layerwise.models.source import Location, locate, why
from layerwise.run.plan import place_of, record_of
from layerwise.tasks.catalog import get_task, load
from layerwise.tasks.task import of_model

log = logging.getLogger(__name__)

# A model's weights, configuration and tokenizer.
MODEL_FILES: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


ATTEMPTS = 3
PAUSE_S = 20.0


def fetched(path: Path, fetch: Callable[[], dict[str, Any]]) -> None:
    """Fetch one thing, tried several times, and record its commits, or why that failed.

    The commit of an earlier fetch stays where a later one fails.
    """
    for attempt in range(ATTEMPTS):
        try:
            record = fetch()
            break
        except LayerwiseError as error:
            log.warning("Attempt %d of %d: %s", attempt + 1, ATTEMPTS, error)
            record = {**record_of(path), "error": str(error)}
            if error.code == "unsafe" or attempt + 1 == ATTEMPTS:
                break
            time.sleep(PAUSE_S * (attempt + 1))
    with replacing(path) as partial:
        partial.write_text(json.dumps(record) + "\n", encoding="utf-8")


def summarize(paths: Sequence[Path]) -> None:
    """List what was not fetched.

    Raises
    ------
    LayerwiseError
        If there is anything.
    """
    found = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    failed = [record["error"] for record in found.values() if "error" in record]
    log.info("%d of %d were fetched.", len(found) - len(failed), len(found))
    if failed:
        lines = "\n".join(failed)
        raise LayerwiseError(
            f"{len(failed)} of {len(found)} were not fetched; start again, what is there is not "
            f"fetched twice:\n{lines}",
            code="unreadable",
        )


def fetch_corpus(source: HubMedia | HubTexts) -> dict[str, Any]:
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
    found = load(get_task(name)).metadata.dataset
    log.info("%s: %s", name, found["path"])
    return {"commit": str(found.get("revision") or "")}


def fetch_model(model: Model, revision: str) -> dict[str, Any]:
    """Fetch a model at a revision, with its adapters, and return their commits."""
    adapters = {
        adapter.place: _snapshot(adapter.hub, adapter.revision, ADAPTER_FILES)
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
    if not gguf:
        saved.embedder(locate(model.source, revision), model.source.hub, 0)
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
