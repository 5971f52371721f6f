"""Keys: a short hash of everything that decides the values in a file.

A key is made of the stage's version, its settings, the identity of the model or data, and the keys
of its inputs. Snakemake compares it with the key of the last run (its ``params`` trigger), and the
file stores it: results copied without ``.snakemake`` are checked too.

Settings at their default are left out of a key. Raise the version of a stage when its code or a
default changes values; ``tests/golden`` fails until you do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache, cached_property
from inspect import getfile
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from layerwise.config.corpora import GeneratedTexts, data_of
from layerwise.config.tasks import LabelledEntry, MtebEntry
from layerwise.io.files import cached_sha256, folder_sha256
from layerwise.metrics.registry import all_metrics, directions
from layerwise.metrics.source import formula_hash
from layerwise.models.source import identity
from layerwise.project import rules_of
from layerwise.vocabulary import POOLINGS, PROTOCOLS, READOUTS, SUBLAYERS, TOKENS

if TYPE_CHECKING:
    from layerwise.config.models import Model
    from layerwise.run.plan import Plan

VERSIONS = {
    "recipe": 1,
    "generate": 1,
    "corpus": 1,
    "images": 2,
    "audio": 1,
    "views": 1,
    "gguf": 1,
    "pickled": 1,
    "extract": 3,
    "metrics": 6,
    "evaluate": 6,
    "associate": 8,
    "select": 8,
    "similarity": 2,
    "published": 2,
    "figure": 14,
    "weights": 1,
    "best_layers": 4,
    "report": 2,
    "explore": 6,
}

# Settings that say how a job runs, not what it computes.
MACHINE = {
    "device",
    "device_map",
    "batch_tokens",
    "threads",
    "waiting_gb",
    "keep_activations",
}
SEQUENCE = "along the sequence"
"""Stands for the table of positions among the metrics' keys."""
LISTS = (TOKENS, PROTOCOLS, SUBLAYERS, POOLINGS, READOUTS)
VOCABULARY = {name: rank for rank, name in enumerate(chain.from_iterable(LISTS))}
# Keys of a model's entry that override `extract` and `scoring`, where they are counted.
OVERRIDES = {"revisions", "dtype", "tokens", "poolings", "readouts", "prompts", "include_prompt"}


def digest(stage: str, *parts: Any) -> str:
    """Hash of a stage's version and of anything JSON can hold; 16 hexadecimal digits."""
    text = json.dumps([stage, VERSIONS.get(stage, 0), *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def settings(section: Any, *leave_out: str) -> dict[str, Any]:
    """The settings of a section that differ from their defaults, as JSON has them."""
    exclude = MACHINE | set(leave_out)
    plain: dict[str, Any] = section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
    return plain


def unordered(names: Iterable[str]) -> list[str]:
    """Names in the order of the vocabulary, then of the alphabet: theirs changes no value."""
    return sorted(names, key=lambda name: (VOCABULARY.get(name, len(VOCABULARY)), name))


def settings_of_values(section: Any) -> dict[str, Any]:
    """As `settings`, where the order of names changes no value."""
    lists = ("tokens", "protocols", "sublayers", "metrics", "poolings", "readouts")
    plain = settings(section)
    return {key: unordered(v) if key in lists and v else v for key, v in plain.items()}


class Keys:
    """The keys of every file of a plan, by stage and names.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config = plan.config

    # Recipes

    @cache
    def recipe(self, folder: str) -> str:
        """The key of all that a recipe makes: the hash of its rules, and of its package's code."""
        name = self.config.recipes[folder]
        rules = rules_of(name)
        code = [rules] if name.endswith(".smk") else [rules, *sorted(rules.parent.rglob("*.py"))]
        return digest("recipe", [_hash(path) for path in code])

    def _made(self, path: str) -> list[str]:
        """The identity of a file or folder that a recipe makes; empty for any other."""
        folder = self.config.recipe_of(path)
        if folder is None:
            return []
        return [self.recipe(folder), PurePath(path).relative_to(folder).as_posix()]

    def _file(self, path: str) -> Any:
        return self._made(path) or _hash(Path(path))

    def _folder(self, path: str) -> Any:
        return self._made(path) or folder_sha256(Path(path))

    # Corpora

    @cache
    def generate(self, corpus: str) -> str:
        generation = self.config.corpora[corpus].source.generate  # type: ignore[union-attr]
        model = generation.model
        return digest(
            "generate",
            self.model(model, self.config.models[model].revisions[-1]),
            self.config.extraction(model).dtype,
            generation.max_new_tokens,
            settings(generation.prompts, "file"),
            self._data(corpus),
        )

    @cache
    def corpus(self, corpus: str) -> str:
        entry = self.config.corpora[corpus]
        source: Any = entry.source
        made = isinstance(source, GeneratedTexts)
        data = self.generate(corpus) if made else self._data(corpus)
        described = settings(entry, "views", "perturb")
        (medium,) = {"source", "images", "audio"} & described.keys()
        described[medium] = settings(source, "file", "folder", "labels", "generate")
        return digest("corpus" if medium == "source" else medium, corpus, described, data)

    def _data(self, corpus: str) -> Any:
        """The identity of the data that a corpus reads."""
        source = data_of(self.config.corpora[corpus].source)
        data: Any = None
        if getattr(source, "file", None):
            data = self._file(source.file)
        elif getattr(source, "folder", None):
            data = self._folder(source.folder)
            data = [data, self._file(source.labels)] if source.labels else data
        elif getattr(source, "hub", None):
            data = _of_folder(source.hub)
        elif getattr(source, "task", None):
            data = self.task_data(source.task)
        return data

    @cache
    def views(self, corpus: str) -> str:
        return digest("views", self.corpus(corpus), settings(self.config.corpora[corpus].views))

    # Models

    @cache
    def converted(self, model: str, revision: str) -> str:
        bare = self.config.models[model].model_copy(update={"adapters": ()})
        stage = "pickled" if getattr(bare.source, "pickled", None) else "gguf"
        return digest(stage, self._identity(bare, revision))

    def _identity(self, entry: Model, revision: str) -> Any:
        """`identity`; of a model with files that recipes make, what the config says and these."""
        if not (made := self.plan.made_files(entry, revision)):
            return identity(entry, revision)
        described = entry.model_dump(mode="json", include={"adapters"})
        return [described, [self._made(path) for path in made]]

    @cache
    def model(self, model: str, revision: str) -> str:
        """The identity of a model at a checkpoint: its settings and, if it is local, its files."""
        entry = self.config.models[model]
        return digest(
            "model",
            settings(entry, *OVERRIDES, "source", "adapters"),
            revision,
            self._identity(entry, revision),
        )

    # Values

    @cache
    def extract(self, model: str, revision: str, corpus: str) -> str:
        perturb = self.config.corpora[corpus].perturb
        return digest(
            "extract",
            self.model(model, revision),
            self.views(corpus),
            self._extraction(model, corpus),
            None if perturb is None else settings(perturb),
        )

    @cache
    def _extraction(self, model: str, corpus: str) -> dict[str, Any]:
        return settings_of_values(self.config.extraction(model, corpus))

    @cache
    def metrics(self, model: str, revision: str, corpus: str) -> str:
        return digest("metrics", self.of_metrics(model, revision, corpus))

    @cache
    def of_metrics(self, model: str, revision: str, corpus: str) -> dict[str, str]:
        """The keys of single metrics, and of the quantities along the sequence."""
        extracted = self.extract(model, revision, corpus)
        return {name: digest("metrics", extracted, *by) for name, by in self._metrics.items()}

    @cached_property
    def _metrics(self) -> dict[str, list[Any]]:
        """What decides each metric's values beside the activations."""
        section, available = self.config.metrics, all_metrics()
        by_metric: dict[str, list[Any]] = {
            SEQUENCE: [settings(section, "metrics", "settings", "seed")]
        }
        for name in unordered(section.metrics or available):
            metric = available[name]
            unused = [] if metric.orders else ["alphas"]
            unused += [] if metric.normalizations else ["normalizations"]
            specific = metric.settings and settings(section.of(metric.section, metric.settings))
            by_metric[name] = [
                settings(section, "metrics", "settings", *unused),
                specific,
                formula_hash(Path(getfile(metric.compute))),
            ]
        return by_metric

    @cache
    def task_data(self, task: str) -> str:
        """The identity of a task: its name, settings and, if it is local, its files."""
        entry = self.config.tasks.get(task)
        data: Any = None
        if isinstance(entry, MtebEntry) and entry.folder is not None:
            data = self._folder(entry.folder)
        elif isinstance(entry, LabelledEntry) and entry.corpus is not None:
            data = self.corpus(entry.corpus)
        else:
            data = [self._file(path) for path in self.plan.task_files(task)]
            questions = getattr(entry, "questions", None)
            hashed = _of_folder(getattr(questions, "hub", ""))
            data += [hashed] if hashed else []
        described = {} if entry is None else settings(entry, "folder", "file")
        return digest("task", task, described, data)

    @cache
    def score(self, model: str, revision: str, task: str) -> str:
        """The key of one task's scores."""
        data, model_key = self.task_data(task), self.model(model, revision)
        return digest("evaluate", model_key, data, *self._scoring(model))

    @cache
    def _scoring(self, model: str) -> list[Any]:
        entry, extraction = self.config.models[model], self.config.extraction(model)
        return [
            settings_of_values(self.config.scoring_of(model)),
            [extraction.dtype, unordered(extraction.tokens), extraction.sink_ratio],
            [entry.prompts, entry.include_prompt],
        ]

    def scores(self, model: str, revision: str) -> dict[str, str]:
        """The keys of all tasks that a model is scored on at a checkpoint, by task."""
        tasks = self.plan.tasks[model, revision]
        return {task: self.score(model, revision, task) for task in tasks}

    @cache
    def evaluate(self, model: str, revision: str) -> str:
        return digest("evaluate", self.scores(model, revision))

    # Studies

    @cache
    def published(self, published: str) -> str:
        entry = self.config.published[published]
        files = [getattr(entry, table) for table in ("scores", "metrics")]
        return digest("published", [self._file(f) if f else None for f in files])

    @cache
    def associate(self, study: str) -> str:
        over = self.config.studies[study].over
        return digest("associate", over, *self._of_association(study))

    @cache
    def select(self, study: str) -> str:
        return digest("select", *self._of_association(study), self._directions)

    def _of_association(self, study: str) -> list[Any]:
        own_texts = self.config.own_texts
        return [
            settings(self.config.association),
            {c: own_texts.get(c) for c in self.plan.studies[study].corpora},
            self._order(study),
            self._inputs(study, ("metrics", "scores")),
        ]

    @cache
    def similarity(self, study: str) -> str:
        (corpus,) = self.plan.studies[study].corpora
        points = self.plan.studies[study].points
        tokens = self.config.studies[study].tokens
        return digest("similarity", tokens, [self.extract(m, r, corpus) for m, r in points])

    @cache
    def figure(self, study: str) -> str:
        described = settings(self.config.studies[study])
        needs = self.plan.studies[study].needs
        if not needs:
            return digest("figure", described)
        decisive = [settings(self.config.association), self._order(study), self._directions]
        return digest("figure", described, *decisive, self._inputs(study, needs))

    @cache
    def weights(self) -> str:
        return digest("weights", [self.model(m, r) for m, r in self.plan.swept])

    @cache
    def best_layers(self) -> str:
        points = self.plan.scored
        section = settings(self.config.association)
        scores = [self.evaluate(model, revision) for model, revision in points]
        return digest("best_layers", list(self.config.models), section, scores)

    @cache
    def report(self) -> str:
        scored = self.best_layers() if self.plan.scored else None
        weights = self.weights() if self.plan.swept else None
        figures = {s: self.figure(s) for s in self.config.studies}
        return digest("report", scored, weights, figures)

    @cache
    def explore(self) -> str:
        tables = {s: self._inputs(s, self.plan.studies[s].needs) for s in self.config.studies}
        association = settings(self.config.association)
        return digest("explore", tables, association, self._directions)

    @cached_property
    def _directions(self) -> dict[str, int]:
        """The directions of the metrics, which decide selections, marks and regrets."""
        return {**directions(), **self.config.association.directions}

    def _order(self, study: str) -> dict[str, Any]:
        """The models and checkpoints of a study in the config's order, which decides colours."""
        revisions = self.plan.studies[study].revisions
        return {
            model: [rank, revisions[model]]
            for rank, model in enumerate(self.config.models)
            if model in revisions
        }

    def _inputs(self, study: str, tables: tuple[str, ...]) -> dict[str, list[str]]:
        """The keys of all tables that a study reads."""
        return {table: self._table(study, table) for table in tables}

    def _table(self, study: str, table: str) -> list[str]:
        planned = self.plan.studies[study]
        published = planned.study.published
        if published and table in ("metrics", "scores"):
            return [self.published(published), *(planned.study.models or ())]
        names = planned.names(table)
        if table == "scores":  # of its tasks alone
            return [self.score(**each, task=task) for each in names for task in planned.tasks]
        return [self.of_table(table, **each) for each in names]

    def of_table(self, table: str, **names: str) -> str:
        """The key of a table of `layerwise.names.PATHS`."""
        methods = {
            "scores": self.evaluate,
            "texts": self.corpus,
            "associations": self.associate,
            "selections": self.select,
            "similarities": self.similarity,
        }
        return methods.get(table, self.metrics)(**names)


def _hash(path: Path) -> str:
    """SHA-256 of a file; ``absent`` if there is none."""
    return cached_sha256(path) if path.is_file() else "absent"


def _of_folder(hub: str) -> str | None:
    """Hash of a data set's files where it is a local folder; None for the hub's."""
    return folder_sha256(Path(hub)) if hub and Path(hub).is_dir() else None
