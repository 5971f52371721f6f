"""From a config to jobs: the key of each, and where models are loaded from.

A job's key is a hash of all that its result depends on: the version of its computation, its
settings, and the keys of what it reads. The workflow hands it to Snakemake as a parameter, so a
job runs again exactly when its result could differ, whatever the clock or the files' times say.

Nothing here imports Snakemake, torch or transformers: a plan is made in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError, closest
from layerwise.files import sha256_file
from layerwise.models.source import locate
from layerwise.paths import encode
from layerwise.wanted import Wanted
from layerwise.workflow.fingerprint import fingerprint

# Written last into a folder that a rule makes; holds the job's key.
MARKER = "layerwise.key"

# 8 MiB of a file are read for its key, from places all over it.
SAMPLES, SAMPLE_BYTES = 256, 2**15

# How a job runs, not what it computes.
MACHINE = frozenset({"device", "batch_tokens", "threads"})

COMPUTATION = {
    "unpack": ("layerwise.corpora.wikipedia",),
    "corpus": (
        "layerwise.corpora.sources",
        "layerwise.corpora.filters",
        "layerwise.corpora.table",
    ),
    "views": ("layerwise.corpora.augment",),
    "nano": ("layerwise.models.nano",),
    "convert": ("layerwise.models.gguf",),
    "tasks": ("layerwise.tasks.quickstart",),
    "texts": ("layerwise.tasks.texts",),
    "extract": ("layerwise.activations.extract",),
    "metrics": ("layerwise.metrics.*",),
    "embed": ("layerwise.activations.embed",),
    "score": ("layerwise.tasks.score",),
    "associate": ("layerwise.association.table",),
    "choices": ("layerwise.association.choice", "layerwise.metrics.*"),
    "best": ("layerwise.association.best", "layerwise.figures.first_page"),
    "weights": ("layerwise.models.checkpoints",),
    "published": ("layerwise.association.published",),
    "figures": ("layerwise.figures.*",),
}


def digest(*parts: Any) -> str:
    """Hash of anything that JSON can hold, 16 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Plan(Wanted):
    """The jobs of one config. Names are as in the config; paths are relative to the root."""

    def weights_key(self) -> str:
        """Key of the table of weight hashes."""
        return digest("weights", self.computation("weights"), self.sweep_activations())

    def best_key(self) -> str:
        """Key of the table of best layers."""
        scores = [self.score_key(m, r, t) for m, r, t in self._scored()]
        return digest("best", self.computation("best"), scores, list(self.config["models"]))

    def published_key(self, name: str) -> str:
        """Key of tables from elsewhere."""
        entry = self.config["published"][name]
        contents = [_content(Path(entry[t])) for t in ("scores", "metrics")]
        return digest("published", self.computation("published"), contents)

    # Names in paths, which someone may have asked for by hand

    def known(self, section: str, name: str) -> str:
        """The name, if it is in a section of the config (``models``, ``tasks``, …).

        Raises
        ------
        LayerwiseError
            If it isn't.
        """
        there = self._all_tasks() if section == "tasks" else self.config[section]
        if name not in there:
            raise LayerwiseError(
                f"There is no {name!r} under {section} in this config{closest(name, there)}; add "
                "it there."
            )
        return name

    def known_revision(self, model: str, revision: str) -> str:
        """The revision, if the config has it of the model.

        Raises
        ------
        LayerwiseError
            If it hasn't.
        """
        listed = self.config["models"][model]["revisions"]
        if revision not in listed:
            raise LayerwiseError(
                f"There is no revision {revision!r} of {model!r} in this config"
                f"{closest(revision, listed)}; add it to models.{model}.revisions."
            )
        return revision

    # Keys, stage by stage

    def computation(self, stage: str) -> str:
        """The version of a stage's computation."""
        return fingerprint(*COMPUTATION[stage])

    @cached_property
    def unpack_key(self) -> str:
        """Key of the Wikipedia paragraphs."""
        return digest("unpack", self.computation("unpack"))

    @lru_cache  # noqa: B019  (a plan lives as long as the run)
    def corpus_key(self, corpus: str) -> str:
        """Key of a corpus."""
        entry = self.config["corpora"][corpus]
        source = entry["source"]
        parts = [entry["source"], entry["filters"], entry["sample"]]
        if source.get("package") == "wikipedia":
            parts.append(self.unpack_key)
        if "file" in source:
            parts.append(_content(Path(source["file"])))
        if "task" in source:
            parts.append(self.task_key(source["task"]))
        return digest("corpus", corpus, self.computation("corpus"), *parts)

    @lru_cache  # noqa: B019
    def views_key(self, corpus: str) -> str:
        """Key of a corpus' views."""
        views = self.config["corpora"][corpus]["views"]
        return digest("views", self.computation("views"), self.corpus_key(corpus), views)

    def nano_key(self, model: str) -> str:
        """Key of a nano model's training; the same for all of its revisions."""
        return digest(
            "nano", self.computation("nano"), self.unpack_key, self.config["nano"][model]
        )

    def convert_key(self, model: str) -> str:
        """Key of a GGUF model's conversion."""
        entry = self.config["models"][model]
        source = entry["source"]
        folders = [locate(source, revision).folder for revision in entry["revisions"]]
        contents = [_sampled(folder / source["gguf_file"]) for folder in folders if folder]
        return digest("convert", self.computation("convert"), source, contents)

    @lru_cache  # noqa: B019
    def model_key(self, model: str, revision: str) -> str:
        """Key of a model at a revision."""
        self.known_revision(self.known("models", model), revision)
        # Where the parts of a model are computed does not change what they compute.
        apart = ("revisions", "device_map")
        entry = {k: v for k, v in self.config["models"][model].items() if k not in apart}
        parts: list[Any] = [entry, revision]
        if model in self.config["nano"]:
            parts.append(self.nano_key(model))
        elif entry["source"].get("gguf_file"):
            parts.append(self.convert_key(model))
        elif "hub" not in entry["source"]:
            folder = locate(entry["source"], revision).folder
            parts.append(_folder_content(folder) if folder else None)
        for adapter in entry["adapters"]:
            if "folder" in adapter:
                parts.append(_folder_content(locate(adapter, "main").folder or Path()))
        return digest("model", *parts)

    def extract_settings(self) -> dict[str, Any]:
        """What the extraction script is told."""
        return {k: v for k, v in self.config["extract"].items() if k not in MACHINE}

    def extract_key(self, model: str, revision: str, corpus: str) -> str:
        """Key of an activations file."""
        return digest(
            "extract", self.computation("extract"), self.extract_settings(),
            self.model_key(model, revision), self.views_key(corpus),
        )  # fmt: skip

    def metrics_key(self, model: str, revision: str, corpus: str) -> str:
        """Key of a metrics table."""
        return digest(
            "metrics", self.computation("metrics"), self.config["metrics"],
            self.extract_key(model, revision, corpus),
        )  # fmt: skip

    @cached_property
    def make_tasks_key(self) -> str:
        """Key of the rule that makes the quickstart's tasks."""
        return digest("tasks", self.computation("tasks"), self.unpack_key)

    @lru_cache  # noqa: B019
    def task_key(self, task: str) -> str:
        """Key of a task's data."""
        folder = self.task_folder(task)
        if task in self.quickstart_tasks:
            return digest(task, self.make_tasks_key)
        return digest("tasks", task, _folder_content(Path(folder)) if folder else None)

    @cached_property
    def quickstart_tasks(self) -> list[str]:
        """The tasks of the config that the workflow makes itself."""
        from layerwise.tasks.names import QUICKSTART

        return [t for t in self.config["tasks"] if t in QUICKSTART]

    def task_folder(self, task: str) -> str | None:
        """The local folder that holds a task's data, if it does not come from the hub."""
        if task in self.config["task_folders"]:
            return str(self.config["task_folders"][task])
        if task in self.quickstart_tasks:
            return self.path("tasks", encode(task))
        return None

    def texts_key(self, task: str) -> str:
        """Key of the list of a task's texts."""
        return digest("texts", self.computation("texts"), self.task_key(task))

    def embed_settings(self) -> dict[str, Any]:
        """What the embedding script is told."""
        extract = {k: self.config["extract"][k] for k in ("dtype", "tokens")}
        scoring = self.config["scoring"]
        return {**extract, "poolings": scoring["poolings"], "readouts": scoring["readouts"]}

    def embed_key(self, model: str, revision: str, task: str) -> str:
        """Key of an embeddings file."""
        return digest(
            "embed", self.computation("embed"), self.embed_settings(),
            self.model_key(model, revision), self.texts_key(task),
        )  # fmt: skip

    def score_settings(self) -> dict[str, Any]:
        """What the scoring script is told."""
        return {k: v for k, v in self.config["scoring"].items() if k not in MACHINE}

    def score_key(self, model: str, revision: str, task: str) -> str:
        """Key of a task's scores."""
        return digest(
            "score", self.computation("score"), self.score_settings(),
            self.embed_key(model, revision, task),
        )  # fmt: skip

    def associate_key(self, study: str) -> str:
        """Key of a study's association table."""
        return digest(
            "associate", self.computation("associate"), self.config["association"],
            self._inputs_key(study),
        )  # fmt: skip

    def choices_key(self, study: str) -> str:
        """Key of a study's tables of the layers that metrics pick."""
        return digest(
            "choices", self.computation("choices"), self.config["association"],
            self._inputs_key(study),
        )  # fmt: skip

    def study_key(self, study: str) -> str:
        """Key of a study's figure and table."""
        return digest(
            "study", self.computation("figures"), self.config["studies"][study],
            self.config["association"], self.computation("associate"), self._inputs_key(study),
        )  # fmt: skip

    @lru_cache  # noqa: B019
    def _inputs_key(self, study: str) -> str:
        entry, points, needs = self.study(study), self.points(study), self.needs(study)
        if entry["published"]:
            return self.published_key(entry["published"])
        metrics = scores = []
        if {"metrics", "prompts", "associations"} & set(needs):
            metrics = [self.metrics_key(m, r, c) for m, r in points for c in entry["corpora"]]
        if {"scores", "associations"} & set(needs):
            scores = [self.score_key(m, r, t) for m, r in points for t in entry["tasks"]]
        return digest(metrics, scores)

    def fetched(self) -> list[str]:
        """The records of all that a config takes from the hub, each once."""
        wanted = []
        for model, entry in self.config["models"].items():
            if "hub" in entry["source"]:
                folder = self.path("fetched", "models", encode(model))
                wanted += [f"{folder}/{encode(r)}.json" for r in entry["revisions"]]
        for corpus, entry in self.config["corpora"].items():
            if "hub" in entry["source"]:
                wanted.append(self.path("fetched", "corpora", f"{encode(corpus)}.json"))
        for task in self._all_tasks():
            if self.task_folder(task) is None:
                wanted.append(self.path("fetched", "tasks", f"{encode(task)}.json"))
        return wanted

    def _all_tasks(self) -> list[str]:
        sources = [entry["source"] for entry in self.config["corpora"].values()]
        of_corpora = [source["task"] for source in sources if "task" in source]
        return list(dict.fromkeys([*self.config["tasks"], *of_corpora]))

    # Where a model is loaded from

    def model_spec(self, model: str) -> dict[str, Any]:
        """The entry that the scripts get: a converted GGUF model is an ordinary folder."""
        entry = {k: v for k, v in self.config["models"][model].items() if k != "revisions"}
        if entry["source"].get("gguf_file"):
            folder = self.path("converted", encode(model), "{revision}")
            entry["source"] = {"folder": folder}
        return entry

    def model_marker(self, model: str, revision: str) -> str | None:
        """The file that says that the model's folder is made, if a rule has yet to make it."""
        if model in self.config["nano"]:
            marker = Path(self.path("nano", encode(model), encode(revision), MARKER))
            made = marker.is_file() and marker.read_text().strip() == self.nano_key(model)
            return None if made else str(marker)
        if self.config["models"][model]["source"].get("gguf_file"):
            return self.path("converted", encode(model), encode(revision), MARKER)
        return None

    def check_sources(self) -> None:
        """Make sure that packages and folders named in the config are there.

        Raises
        ------
        LayerwiseError
            Naming the model or corpus, what is missing, and how to get it.
        """
        for name, entry in self.config["models"].items():
            for revision in entry["revisions"] if name not in self.config["nano"] else ():
                try:
                    locate(entry["source"], revision)
                    for adapter in entry["adapters"]:
                        locate(adapter, "main")
                except LayerwiseError as error:
                    raise LayerwiseError(f"models.{name}: {error}") from error
        for name, entry in self.config["published"].items():
            for table, file in entry.items():
                if not Path(file).is_file():
                    raise LayerwiseError(f"published.{name}.{table}: there is no file {file}.")
        for name, entry in self.config["corpora"].items():
            file = entry["source"].get("file")
            if file is not None and not Path(file).is_file():
                raise LayerwiseError(f"corpora.{name}.source.file: there is no file {file}.")


def _content(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "absent"


def _folder_content(folder: Path) -> str:
    """Names and contents of a folder's files, those of large ones as `_sampled` has them.

    The full hash of the weights is in every file made from them; this is read at every start.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")
    return digest([(path.relative_to(folder).as_posix(), _sampled(path)) for path in files])


def _sampled(path: Path) -> str:
    """Hash of a file's size and of its bytes; of a large file's, of `SAMPLES` stretches of them.

    The stretches lie all over the file: fine-tuning may leave the first tensors as they were.
    """
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as handle:
        if size <= SAMPLES * SAMPLE_BYTES:
            found.update(handle.read())
        else:
            for k in range(SAMPLES):
                handle.seek(k * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                found.update(handle.read(SAMPLE_BYTES))
    return found.hexdigest()
