"""The plan of a run: what each study of a config reads, and the files of the whole.

Everything is found once per process and in time linear in the number of checkpoints. Names are
those of the config.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TypeVar

from layerwise.config import Config
from layerwise.config.corpora import GeneratedTexts, TaskTexts, data_of
from layerwise.config.models import is_converted
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import Study
from layerwise.config.tasks import MtebEntry
from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.names import PATHS, encode, path_of
from layerwise.run.keys import Keys
from layerwise.section import Section, item_path

OF_STUDY = {"associations", "selections", "similarities"}
"""Tables that are made for one study."""
OF_RESULTS = {"associations", "selections"}
"""Tables made of metrics and scores."""
OF_METRICS = {"metrics", "prompts", "positions"} | OF_RESULTS
"""Tables that come from the metrics of a corpus."""
OF_SCORES = {"scores"} | OF_RESULTS
"""Tables that come from scores."""

TABLE_KEYS = ".config/keys.json"
"""The keys that the last run asked for, by path of the table below the results."""

T = TypeVar("T")
Point = tuple[str, str]
"""A model and one of its checkpoints."""


class PlannedStudy:
    """A study of a config, with what it reads.

    Parameters
    ----------
    name : str
        Name of the study whose own tables it reads.
    study : Study
    config : Config
    """

    def __init__(self, name: str, study: Study, config: Config) -> None:
        self.name = name
        self.study = study
        self.config = config

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The tables that the study reads."""
        return self.study.reads

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models of the study."""
        return self.study.models or tuple(self.config.models)

    @cached_property
    def revisions(self) -> dict[str, tuple[str, ...]]:
        """The checkpoints of each model that the study shows, in the config's order."""
        return {m: self._revisions(m) for m in self.models if m in self.config.models}

    def _revisions(self, model: str) -> tuple[str, ...]:
        checkpoints = self.config.models[model].revisions
        wanted = self.study.revisions or self.study.declaration.revisions
        if wanted == "last":
            return checkpoints[-1:]
        return checkpoints if wanted == "all" else tuple(r for r in checkpoints if r in wanted)

    @cached_property
    def points(self) -> list[Point]:
        """The models and checkpoints that the study reads; none of published tables."""
        if self.study.published or not self.needs:
            return []
        return [(model, r) for model, revisions in self.revisions.items() for r in revisions]

    @cached_property
    def corpora(self) -> tuple[str, ...]:
        """The corpora of the study."""
        names = self.study.corpora or tuple(self.config.corpora)
        corpora = [tuple(self.config.own_texts) if n == OWN_TEXTS else (n,) for n in names]
        return tuple(dict.fromkeys(chain.from_iterable(corpora)))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the study."""
        named = self.study.tasks or tuple(self.config.tasks)
        if not self.study.declaration.only_probes:
            return named
        kinds = {n: getattr(entry, "kind", "pairs") for n, entry in self.config.tasks.items()}
        return tuple(task for task in named if kinds[task] != "pairs")

    def files(self, table: str) -> list[str]:
        """The files of one table that the study reads, or of its activations."""
        published = self.study.published
        if published and table in ("metrics", "scores"):
            return [f"{self.config.results}/published/{encode(published)}.{table}.parquet"]
        return [f"{self.config.results}/{path_of(table, **n)}" for n in self.names(table)]

    def names(self, table: str) -> list[dict[str, str]]:
        """The names in the paths of these files."""
        names = [{"study": self.name}]
        if "{corpus}" in PATHS[table]:
            names = [{"corpus": corpus} for corpus in self.corpora]
        if "{model}" in PATHS[table]:
            points = [{"model": model, "revision": r} for model, r in self.points]
            corpora = names if "{corpus}" in PATHS[table] else [{}]
            names = [{**point, **corpus} for point in points for corpus in corpora]
        return names


class Plan:
    """The studies of a config and the files of the whole.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    studies : dict of str to PlannedStudy
    keys : Keys
        The key of every file.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.studies = {n: PlannedStudy(n, s, config) for n, s in config.studies.items()}
        self.keys = Keys(self)

    def path(self, table: str, **names: str) -> str:
        """The path of a file of `layerwise.names.PATHS`."""
        return f"{self.config.results}/{path_of(table, **names)}"

    @cached_property
    def scored(self) -> list[Point]:
        """The models and checkpoints whose scores some study reads."""
        reading = (study for study in self.studies.values() if OF_SCORES & {*study.needs})
        return _distinct(point for study in reading for point in study.points)

    @cached_property
    def measured(self) -> dict[Point, list[str]]:
        """The corpora whose metrics some study reads, by model and checkpoint."""
        corpora_of: dict[Point, dict[str, None]] = defaultdict(dict)
        for study in self.studies.values():
            for point in study.points if OF_METRICS & {*study.needs} else ():
                corpora_of[point].update(dict.fromkeys(study.corpora))
        return {point: list(corpora) for point, corpora in corpora_of.items()}

    @cached_property
    def corpora_read(self) -> list[str]:
        """The corpora whose prompts, or values on them, some study reads."""
        reading = OF_METRICS | {"texts", "similarities"}
        studies = [s for s in self.studies.values() if s.points and reading & set(s.needs)]
        return _distinct(corpus for study in studies for corpus in study.corpora)

    @cached_property
    def tasks(self) -> Mapping[Point, list[str]]:
        """The tasks that a model is scored on at a checkpoint: those that studies read, or all."""
        tasks_of: dict[Point, dict[str, None]] = defaultdict(dict)
        for study in self.studies.values():
            for point in study.points if OF_SCORES & {*study.needs} else ():
                tasks_of[point].update(dict.fromkeys(study.tasks))
        everything = list(self.config.tasks)
        tasks: dict[Point, list[str]] = defaultdict(lambda: everything)
        tasks.update({point: list(names) or everything for point, names in tasks_of.items()})
        return tasks

    @cached_property
    def swept(self) -> list[Point]:
        """The models and checkpoints of models that are read at several checkpoints."""
        read = _distinct([*self.measured, *self.scored])
        counts = Counter(model for model, _ in read)
        return [(model, r) for model, r in read if counts[model] > 1]

    @cached_property
    def facts_tables(self) -> dict[Point, str]:
        """A table of each checkpoint that is read, with facts such as the hash of its weights."""
        files = {(m, r): self.path("scores", model=m, revision=r) for m, r in self.scored}
        for (m, r), corpora in self.measured.items():
            files[m, r] = self.path("metrics", model=m, revision=r, corpus=corpora[-1])
        return files

    @cached_property
    def revisions_read(self) -> dict[str, list[str]]:
        """The checkpoints of each model that studies read, in the config's order."""
        models, with_table = self.config.models, self.facts_tables
        revisions = {m: [r for r in models[m].revisions if (m, r) in with_table] for m in models}
        return {model: names for model, names in revisions.items() if names}

    @cached_property
    def score_files(self) -> list[str]:
        """The tables of scores that studies read."""
        return [self.path("scores", model=m, revision=r) for m, r in self.scored]

    def metrics_due(self, **names: str) -> list[str]:
        """The metrics that the tables of a checkpoint and corpus lack.

        All of them if there are no such tables, or if they are made again under the same key.
        """
        keys = self.keys.of_metrics(**names)
        paths = [Path(self.path(table, **names)) for table in ("metrics", "prompts", "positions")]
        with suppress(LayerwiseError):
            made_for = {facts["key"]: facts for facts in map(tables.facts, paths)}
            if len(made_for) == 1 and self.keys.metrics(**names) not in made_for:
                (facts,) = made_for.values()
                stored = json.loads(facts.get("metric_keys", "{}"))
                return [name for name, key in keys.items() if stored.get(name) != key]
        return list(keys)

    def table_keys(self) -> dict[str, str]:
        """The keys of the tables that studies read, by path below the results."""
        return {
            path_of(table, **names): self.keys.of_table(table, **names)
            for study in self.studies.values()
            for table in study.needs
            for names in study.names(table)
        }

    def is_to_make(self, model: str) -> bool:
        """True if a recipe makes a model and has not made its last checkpoint yet."""
        entry = self.config.models[model]
        paths = self.made_files(entry.source, entry.revisions[-1])
        return not all(Path(path).exists() for path in paths)

    def made_files(self, entry: Section | None, revision: str = "") -> list[str]:
        """The files and folders that recipes make among those that an entry names."""
        named = [path for _, path in paths_of(entry)] if entry else []
        paths = [path.replace("{revision}", revision) for path in named]
        return [path for path in paths if self.config.recipe_of(path)]

    def task_files(self, task: str) -> list[str]:
        """The user's own files that a task is read from."""
        entry = self.config.tasks.get(task)
        source = getattr(entry, "questions", entry)
        if not getattr(source, "file", None):
            return []
        return [file for key in ("file", "examples") if (file := getattr(source, key, None))]

    def task_results(self, task: str) -> list[str]:
        """The results of the workflow that a task is read from."""
        entry = self.config.tasks.get(task)
        paths = self.made_files(entry) if isinstance(entry, MtebEntry) else []
        if corpus := getattr(entry, "corpus", None):
            paths.append(self.path("texts", corpus=corpus))
        return paths

    @property
    def generated(self) -> list[str]:
        """The corpora that a model writes."""
        corpora = self.config.corpora.items()
        return [name for name, entry in corpora if isinstance(entry.source, GeneratedTexts)]

    def corpus_files(self, corpus: str) -> list[str]:
        """The user's own files that a corpus, or the model that writes it, is made from."""
        source = data_of(self.config.corpora[corpus].source)
        if isinstance(source, TaskTexts):
            return self.task_files(source.task)
        return [source.file] if getattr(source, "file", None) else []

    def corpus_results(self, corpus: str) -> list[str]:
        """The results of the workflow that a corpus is selected from."""
        source = self.config.corpora[corpus].source
        if isinstance(source, GeneratedTexts):
            return [f"{self.config.results}/generated/{encode(corpus)}.parquet"]
        return self.task_results(source.task) if isinstance(source, TaskTexts) else []


def model_folder(config: Config, model: str, revision: str) -> str | None:
    """The folder of a model that the workflow converts; None for any other."""
    if not is_converted(config.models[model].source):
        return None
    return f"{config.results}/converted/{encode(model)}/{encode(revision)}"


# Keys of files and folders.
FILES = ("file", "folder", "states", "labels", "scores", "metrics")


def paths_of(entry: Section, where: str = "") -> Iterator[tuple[str, str]]:
    """The files and folders that an entry of the config names: the keys, and the paths."""
    for key, value in entry:
        path = item_path(where, key)
        # A list has items of one kind; that of revisions may be long.
        if isinstance(value, tuple) and value and isinstance(value[0], Section):
            for i, item in enumerate(value):
                yield from paths_of(item, item_path(path, i))
        # The file of a pickled model is inside its folder.
        if isinstance(value, Section) and key != "pickled":
            yield from paths_of(value, path)
        if key in FILES and isinstance(value, str):
            yield path, value


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
