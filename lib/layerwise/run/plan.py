"""The plan of a run: what each study of a config reads, the files of the whole, and their keys.

A key is a short hash of everything that decides the values in a file: the version of its stage,
its settings, the identity of the model or data, and the keys of its inputs. Snakemake compares it
with the key of the last run (its ``params`` trigger), and the file stores it: results copied
without ``.snakemake`` are checked too.

`STAGES` has a row for each kind of file. Settings at their default are left out of a key. Raise
the version of a stage when its code or a default changes values; tests fail until you do.

Everything is computed once per process and in time linear in the number of checkpoints. Names are
those of the config.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from inspect import getfile
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

from layerwise import addons
from layerwise.activations.store import ARRAYS
from layerwise.config import Config
from layerwise.config.corpora import GeneratedTexts, TaskTexts, data_of
from layerwise.config.models import is_converted
from layerwise.config.settings import OWN_TEXTS, ExtractSettings
from layerwise.config.studies import Study
from layerwise.config.tasks import CustomEntry, LabelledEntry, MtebEntry
from layerwise.io.files import cached_sha256, folder_sha256
from layerwise.metrics.registry import (
    QUANTITIES,
    all_metrics,
    arrays_for,
    directions,
    formula_hash,
    source_hash,
)
from layerwise.models.source import identity
from layerwise.names import PATHS, decode, encode, path_of
from layerwise.project import rules_of
from layerwise.section import Section, item_path
from layerwise.vocabulary import POOLINGS, PROTOCOLS, READOUTS, SUBLAYERS, TOKENS

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


def extraction_of(config: Config, model: str, corpus: str) -> ExtractSettings:
    """`extract` for a model and a corpus, with the arrays that metrics and studies need."""
    settings = config.extraction(model, corpus)
    arrays = {*settings.arrays} | arrays_for(config.metrics.metrics or ())
    for study in config.studies.values():
        is_of = model in (study.models or [model]) and corpus in (study.corpora or [corpus])
        if is_of and not study.published:
            arrays |= arrays_for([choice.metric for choice in study.metric_choices or ()])
    return settings.model_copy(update={"arrays": tuple(sorted(arrays))})


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
    """

    def __init__(self, config: Config) -> None:
        addons.load("stages")
        self.config = config
        self.studies = {n: PlannedStudy(n, s, config) for n, s in config.studies.items()}

    def path(self, table: str, **names: str) -> str:
        """The path of a file of `layerwise.names.PATHS`."""
        return f"{self.config.results}/{path_of(table, **names)}"

    @cached_property
    def scored(self) -> list[Point]:
        """The models and checkpoints whose scores some study reads."""
        reading = (study for study in self.studies.values() if OF_SCORES & {*study.needs})
        return _distinct(point for study in reading for point in study.points)

    @cached_property
    def scored_points(self) -> frozenset[Point]:
        """`scored` as a set."""
        return frozenset(self.scored)

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
    def _revisions(self) -> dict[str, set[str]]:
        return {model: set(entry.revisions) for model, entry in self.config.models.items()}

    def has_revision(self, model: str, revision: str) -> bool:
        """True if the config has a checkpoint of a model."""
        return revision in self._revisions[model]

    @cached_property
    def score_files(self) -> list[str]:
        """The tables of scores that studies read."""
        return [self.path("scores", model=m, revision=r) for m, r in self.scored]

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
        if isinstance(entry, CustomEntry):
            return [*entry.files]
        return [entry.file] if isinstance(entry, LabelledEntry) and entry.file else []

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

    def published_files(self, published: str) -> list[str]:
        """The tables of other work."""
        entry = self.config.published[published]
        return [path for path in (entry.scores, entry.metrics) if path]

    # Keys

    @cache
    def key(self, stage: str, **names: str) -> str:
        """The key of a stage's files for names of the config."""
        row = STAGES[self.config.corpora[names["corpus"]].stage if stage == "corpus" else stage]
        inputs = [self.key(i, **{n: names[n] for n in STAGES[i].names}) for i in row.inputs]
        return digest(stage, row.version, row.settings(self, **names), inputs)

    def expected(self, path: str | Path) -> tuple[str, str] | None:
        """The rule and the key of a file of the workflow; None for a file of the user."""
        if folder := self.config.recipe_of(str(path)):
            return "", self.key("recipe", folder=folder)
        if not PurePath(path).is_relative_to(self.config.results):
            return None
        inside = PurePath(path).relative_to(self.config.results).as_posix()
        for stage, pattern in _patterns():
            if match := pattern.fullmatch(inside):
                names = {name: decode(value) for name, value in match.groupdict().items()}
                if all(self._is_known(*item) for item in names.items()):
                    return STAGES[stage].rule, self.key(stage, **names)
        return None

    def _is_known(self, kind: str, name: str) -> bool:
        sections = {"model": "models", "corpus": "corpora", "study": "studies"}
        return kind == "revision" or name in getattr(self.config, sections.get(kind, kind))

    @cache
    def metric_keys(self, model: str, revision: str, corpus: str) -> dict[str, str]:
        """The keys of single metrics, and of the quantities along the sequence."""
        extracted = self.key("pass", model=model, revision=revision, corpus=corpus)
        arrays = {*extraction_of(self.config, model, corpus).arrays}
        version = STAGES["metrics"].version
        keys = {}
        for name, by in self._metrics.items():
            reads = arrays_for(QUANTITIES if name == SEQUENCE else [name]) & arrays
            keys[name] = digest("metrics", version, extracted, sorted(reads), *by)
        return keys

    @cached_property
    def _metrics(self) -> dict[str, list[Any]]:
        """What decides each metric's values beside the activations."""
        section, available = self.config.metrics, all_metrics()
        by_metric: dict[str, list[Any]] = {
            SEQUENCE: [settings(section, "metrics", "settings", "seed")]
        }
        for name in canonical_order(section.metrics or available):
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

    def score_keys(self, model: str, revision: str) -> dict[str, str]:
        """The keys of all tasks that a model is scored on at a checkpoint, by task."""
        point = {"model": model, "revision": revision}
        return {t: self.key("score", **point, task=t) for t in self.tasks[model, revision]}

    def table_key(self, table: str, **names: str) -> str:
        """The key of a table of `layerwise.names.PATHS`."""
        return self.key(STAGE_OF.get(table, "metrics"), **names)

    def table_keys(self) -> dict[str, str]:
        """The keys of the tables that studies read, by path below the results."""
        return {
            path_of(table, **names): self.table_key(table, **names)
            for study in self.studies.values()
            for table in study.needs
            for names in study.names(table)
        }

    def input_keys(self, study: str, tables: Iterable[str]) -> dict[str, list[str]]:
        """The keys of the files of some tables that a study reads."""
        return {table: self._input_keys(self.studies[study], table) for table in tables}

    def _input_keys(self, planned: PlannedStudy, table: str) -> list[str]:
        published = planned.study.published
        if published and table in ("metrics", "scores"):
            return [self.key("published", published=published), *(planned.study.models or ())]
        names = planned.names(table)
        if table == "scores":  # of its tasks alone
            return [self.key("score", **at, task=task) for at in names for task in planned.tasks]
        return [self.table_key(table, **at) for at in names]

    def file_identity(self, path: str) -> Any:
        """The hash of a file of the user; of one that a recipe makes, the recipe's key."""
        return self._made(path) or _hash(Path(path))

    def folder_identity(self, path: str) -> Any:
        """As `file_identity`, of a folder."""
        return self._made(path) or folder_sha256(Path(path))

    def _made(self, path: str) -> list[str]:
        folder = self.config.recipe_of(path)
        if folder is None:
            return []
        name = PurePath(path).relative_to(folder).as_posix()
        return [self.key("recipe", folder=folder), name]

    def model_identity(self, model: str, revision: str) -> Any:
        """What tells a model from others: of one that recipes make, their keys."""
        entry = self.config.models[model]
        if not (made := self.made_files(entry, revision)):
            return identity(entry, revision)
        described = entry.model_dump(mode="json", include={"adapters"})
        return [described, [self._made(path) for path in made]]

    @cached_property
    def directions(self) -> dict[str, int]:
        """The directions of the metrics, which decide selections, marks and regrets."""
        return {**directions(), **self.config.association.directions}

    def colours(self, study: str) -> dict[str, Any]:
        """The models and checkpoints of a study in the config's order, which decides colours."""
        revisions = self.studies[study].revisions
        return {
            model: [rank, revisions[model]]
            for rank, model in enumerate(self.config.models)
            if model in revisions
        }


# Keys

# Settings that say how a job runs, not what it computes.
MACHINE = {"device", "device_map", "batch_tokens", "threads", "keep_activations"}
SEQUENCE = "along the sequence"
"""Stands for the table of positions among the metrics' keys."""
ORDERED = chain(TOKENS, PROTOCOLS, SUBLAYERS, POOLINGS, READOUTS)
VOCABULARY = {name: rank for rank, name in enumerate(ORDERED)}
# Keys of a model's entry that override `extract` and `scoring`, where they are counted.
OVERRIDES = {"revisions", "dtype", "tokens", "poolings", "readouts", "prompts", "include_prompt"}


def digest(*parts: Any) -> str:
    """Hash of anything JSON can hold; 16 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def settings(section: Any, *leave_out: str) -> dict[str, Any]:
    """The settings of a section that differ from their defaults, as JSON has them."""
    exclude = MACHINE | set(leave_out)
    plain: dict[str, Any] = section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
    return plain


def canonical_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the vocabulary, then of the alphabet: theirs changes no value."""
    return sorted(names, key=lambda name: (VOCABULARY.get(name, len(VOCABULARY)), name))


def settings_of_values(section: Any) -> dict[str, Any]:
    """As `settings`, where the order of names changes no value."""
    lists = ("tokens", "protocols", "sublayers", "metrics", "poolings", "readouts")
    plain = settings(section)
    return {key: canonical_order(v) if key in lists and v else v for key, v in plain.items()}


def _hash(path: Path) -> str:
    """SHA-256 of a file; ``absent`` if there is none."""
    return cached_sha256(path) if path.is_file() else "absent"


def _data_set(hub: str) -> str | None:
    """Hash of a data set's files where it is a local folder; None for the hub's."""
    return folder_sha256(Path(hub)) if hub and Path(hub).is_dir() else None


def _recipe(plan: Plan, folder: str) -> Any:
    """The hash of a recipe's rules, and of its package's code."""
    name = plan.config.recipes[folder]
    rules = rules_of(name)
    code = [rules] if name.endswith(".smk") else [rules, *sorted(rules.parent.rglob("*.py"))]
    return [_hash(path) for path in code]


def _generation(plan: Plan, corpus: str) -> Any:
    generation = plan.config.corpora[corpus].source.generate  # type: ignore[union-attr]
    model = generation.model
    return [
        plan.key("model", model=model, revision=plan.config.models[model].revisions[-1]),
        plan.config.extraction(model).dtype,
        generation.max_new_tokens,
        settings(generation.prompts, "file"),
        _corpus_data(plan, corpus),
    ]


def _selection(plan: Plan, corpus: str) -> Any:
    """What decides the prompts of a corpus: its name, which seeds the sample, and its data."""
    entry = plan.config.corpora[corpus]
    source: Any = entry.source
    is_generated = isinstance(source, GeneratedTexts)
    data = plan.key("generate", corpus=corpus) if is_generated else _corpus_data(plan, corpus)
    described = settings(entry, "views", "perturb")
    described[entry.source_key] = settings(source, "file", "folder", "labels", "generate")
    return [corpus, described, data]


def _corpus_data(plan: Plan, corpus: str) -> Any:
    """The identity of the data that a corpus reads."""
    source = data_of(plan.config.corpora[corpus].source)
    if getattr(source, "file", None):
        return plan.file_identity(source.file)
    if getattr(source, "folder", None):
        data = plan.folder_identity(source.folder)
        return [data, plan.file_identity(source.labels)] if source.labels else data
    if getattr(source, "task", None):
        return plan.key("task", task=source.task)
    return _data_set(getattr(source, "hub", ""))


def _model(plan: Plan, model: str, revision: str) -> Any:
    """The identity of a model at a checkpoint: its settings and, if it is local, its files."""
    described = settings(plan.config.models[model], *OVERRIDES, "source", "adapters")
    return [described, revision, plan.model_identity(model, revision)]


def _pass(plan: Plan, model: str, revision: str, corpus: str) -> Any:  # noqa: ARG001
    """What decides the values of every array: costly ones change the pass."""
    perturb = plan.config.corpora[corpus].perturb
    extraction = extraction_of(plan.config, model, corpus)
    costly = tuple(name for name in extraction.arrays if ARRAYS[name].costly)
    described = settings_of_values(extraction.model_copy(update={"arrays": costly}))
    return [described, None if perturb is None else settings(perturb)]


def _task(plan: Plan, task: str) -> Any:
    """The identity of a task: its name, settings and, if it is local, its files."""
    entry = plan.config.tasks.get(task)
    data: Any
    if isinstance(entry, MtebEntry) and entry.folder is not None:
        data = plan.folder_identity(entry.folder)
    elif isinstance(entry, LabelledEntry) and entry.corpus is not None:
        data = plan.key("corpus", corpus=entry.corpus)
    else:
        hubs = sorted({data.hub for data in getattr(entry, "data_sets", ())})
        files = [plan.file_identity(path) for path in plan.task_files(task)]
        data = [files, *map(_data_set, hubs or [""])]
    described = {} if entry is None else settings(entry, "folder", "file")
    # A task that has its own name as its default changes with this package.
    if "task" in described:
        described["code"] = source_hash(Path(getfile(type(entry))))
    return [task, described, data]


def _scoring(plan: Plan, model: str, revision: str, task: str) -> Any:  # noqa: ARG001
    entry, extraction = plan.config.models[model], plan.config.extraction(model)
    return [
        settings_of_values(plan.config.scoring_of(model)),
        [extraction.dtype, canonical_order(extraction.tokens), extraction.sink_ratio],
        [entry.prompts, entry.include_prompt],
    ]


def _association(plan: Plan, study: str) -> Any:
    own_texts = plan.config.own_texts
    return [
        settings(plan.config.association),
        {corpus: own_texts.get(corpus) for corpus in plan.studies[study].corpora},
        plan.colours(study),
        plan.input_keys(study, ("metrics", "scores")),
    ]


def _figure(plan: Plan, study: str) -> Any:
    described = settings(plan.config.studies[study])
    if not (needs := plan.studies[study].needs):
        return described
    decisive = [settings(plan.config.association), plan.colours(study), plan.directions]
    return [described, *decisive, plan.input_keys(study, needs)]


def _best_layers(plan: Plan) -> Any:
    keys = [plan.key("evaluate", model=m, revision=r) for m, r in plan.scored]
    return [list(plan.config.models), settings(plan.config.association), keys]


def _report(plan: Plan) -> Any:
    scored = plan.key("best_layers") if plan.scored else None
    weights = plan.key("weights") if plan.swept else None
    return [scored, weights, {s: plan.key("figure", study=s) for s in plan.config.studies}]


class Stage(NamedTuple):
    """A kind of file, and what decides the values in it.

    Attributes
    ----------
    version : int
        To be raised when code or a default changes values.
    names : tuple of str
        Names that tell its files apart.
    settings : function of the plan and the names
        What decides the values beside the inputs, as JSON can hold it.
    inputs : tuple of str
        Stages whose keys are part of this one's.
    rule : str
        The rule that makes the files.
    files : tuple of str
        The files that carry the key, below the results folder.
    """

    version: int
    names: tuple[str, ...]
    settings: Callable[..., Any]
    inputs: tuple[str, ...] = ()
    rule: str = ""
    files: tuple[str, ...] = ()


CORPUS, POINT, STUDY = ("corpus",), ("model", "revision"), ("study",)
METRICS = tuple(PATHS[table] for table in ("metrics", "prompts", "positions"))
STAGES = {
    "recipe": Stage(1, ("folder",), _recipe),
    "generate": Stage(1, CORPUS, _generation, (), "generate", ("generated/{corpus}.parquet",)),
    "corpus": Stage(1, CORPUS, _selection, (), "corpus", (PATHS["texts"],)),
    "views": Stage(
        1,
        CORPUS,
        lambda plan, corpus: settings(plan.config.corpora[corpus].views),
        ("corpus",),
        "views",
        ("corpora/{corpus}.views.parquet",),
    ),
    "converted": Stage(
        1,
        POINT,
        lambda plan, model, revision: plan.model_identity(model, revision),
        (),
        "convert",
        ("converted/{model}/{revision}/layerwise.json",),
    ),
    "model": Stage(1, POINT, _model),
    "pass": Stage(4, POINT + CORPUS, _pass, ("model", "views")),
    "extract": Stage(
        1,
        POINT + CORPUS,
        lambda plan, model, corpus, **_: extraction_of(plan.config, model, corpus).arrays,
        ("pass",),
        "extract",
        (PATHS["activations"],),
    ),
    "metrics": Stage(
        6,
        POINT + CORPUS,
        lambda plan, **names: plan.metric_keys(**names),
        (),
        "metrics",
        METRICS,
    ),
    "task": Stage(1, ("task",), _task),
    "score": Stage(7, (*POINT, "task"), _scoring, ("model", "task")),
    "evaluate": Stage(
        1,
        POINT,
        lambda plan, **names: plan.score_keys(**names),
        (),
        "evaluate",
        (PATHS["scores"],),
    ),
    "associate": Stage(
        8,
        STUDY,
        lambda plan, study: [plan.config.studies[study].over, _association(plan, study)],
        (),
        "associate",
        (PATHS["associations"],),
    ),
    "select": Stage(
        8,
        STUDY,
        lambda plan, study: [_association(plan, study), plan.directions],
        (),
        "select",
        (PATHS["selections"], "selections/{study}.csv"),
    ),
    "figure": Stage(
        15, STUDY, _figure, (), "figure", ("figures/{study}.png", "tables/{study}.csv")
    ),
    "weights": Stage(
        1,
        (),
        lambda plan: [plan.key("model", model=m, revision=r) for m, r in plan.swept],
        (),
        "weights",
        ("report/weights.csv",),
    ),
    "best_layers": Stage(5, (), _best_layers, (), "best_layers", ("report/best_layers.csv",)),
    "report": Stage(2, (), _report, (), "report", ("report.html",)),
}
"""Every kind of file. Add-ons put their own rows in (`layerwise.addons`); a corpus of a medium has
the version of its own row."""
STAGE_OF = {
    "scores": "evaluate",
    "texts": "corpus",
    "associations": "associate",
    "selections": "select",
    "similarities": "similarity",
    "activations": "extract",
}
"""The stages of tables other than those of metrics."""


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Stages and the patterns of their files, the longer ones first: ``a.views.parquet``."""
    files = [(stage, file) for stage, row in STAGES.items() for file in row.files]
    files.sort(key=lambda pair: -len(pair[1]))
    group = re.compile(r"\\\{(\w+)\\\}")
    return [
        (stage, re.compile(group.sub(r"(?P<\1>[^/]+)", re.escape(file)))) for stage, file in files
    ]


# Files of a config


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
