"""Checks of a config that need more than one section, or this machine, before any job runs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from layerwise.activations.store import ARRAYS
from layerwise.config import Config
from layerwise.config.corpora import CorpusSettings, GeneratedTexts, data_of
from layerwise.config.models import StatesSource
from layerwise.config.reading import Loader, read_yaml
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.tasks import LabelledEntry, MtebEntry
from layerwise.errors import ConfigError, LayerwiseError, closest
from layerwise.io.files import is_file, is_folder
from layerwise.metrics.registry import all_metrics, sections
from layerwise.models.source import locate
from layerwise.names import RESERVED, encode
from layerwise.project import rules_of
from layerwise.run.plan import OF_SCORES, Plan, paths_of
from layerwise.run.tables_to_come import WITH_CORPORA, check_study, require_known
from layerwise.tasks import catalog
from layerwise.tasks.catalog import PAPER, TYPES

log = logging.getLogger(__name__)


def read_valid(document: Any, files: Sequence[str | Path]) -> Plan:
    """Read and check the config that Snakemake merged from files, and plan its run.

    Raises
    ------
    ConfigError
        In one sentence: the files, the key, what is wrong, and how to fix it.
    """
    # Refuses a key given twice, of which Snakemake keeps the last.
    documents = [read_yaml(Path(file)) for file in files]
    try:
        return validate(Config.of(_parse_options(document, documents)))
    except ConfigError as error:
        raise error.in_file(", ".join(map(str, files))) from None


def _parse_options(value: Any, in_files: Sequence[Any]) -> Any:
    """Parse the texts that ``--config 'extract={threads: 4}'`` adds to a document: YAML to values.

    Parameters
    ----------
    in_files : sequence
        What the files have in the place of `value`; texts of theirs stay.
    """
    if isinstance(value, Mapping):
        mappings = [each for each in in_files if isinstance(each, Mapping)]
        return {k: _parse_options(v, [m[k] for m in mappings if k in m]) for k, v in value.items()}
    if isinstance(value, list):
        items = [item for each in in_files if isinstance(each, list) for item in each]
        return [_parse_options(item, items) for item in value]
    if isinstance(value, str) and value not in in_files:
        with suppress(yaml.YAMLError):
            return yaml.load(value, Loader)
    return value


def validate(config: Config) -> Plan:
    """Check that the sections of a config fit together and that its files exist.

    Raises
    ------
    ConfigError
        In one sentence: the key, what is wrong, and how to fix it.
    """
    _check_names(config)
    for where, names, choices in _references(config):
        require_known(where, names, choices)
    for name, section in sections().items():
        config.metrics.of(name, section)
    _check_recipes(config)
    _check_generation(config)
    _check_tasks(config)
    _check_prompts(config)
    plan = Plan(config)
    for study in plan.studies.values():
        check_study(study)
    _check_files(plan)
    _check_association(config)
    return plan


def log_unused(plan: Plan) -> None:
    """Log models, corpora and tasks that no study uses."""
    config = plan.config
    corpora = [t.corpus for t in config.tasks.values() if isinstance(t, LabelledEntry)]
    used: dict[str, set[Any]] = {"models": set(), "corpora": set(corpora), "tasks": set()}
    for study in plan.studies.values():
        tables = set() if study.study.published else set(study.needs)
        used["models"] |= {model for model, _ in study.points}
        if tables & (WITH_CORPORA | {"texts"}):
            used["corpora"] |= set(study.corpora)
        if tables & OF_SCORES:
            used["tasks"] |= set(study.tasks)
    for section, names in used.items():
        rest = [name for name in getattr(config, section) if name not in names]
        if rest:
            log.warning("No study uses these %s: %s.", section, ", ".join(rest))


def _check_names(config: Config) -> None:
    """Refuse names that paths cannot hold, and those that would be the file of another.

    Names that differ in case only are one file on many laptops.
    """
    for section in ("models", "corpora", "tasks", "published", "studies"):
        seen: dict[str, str] = {}
        for name in getattr(config, section):
            try:
                encode(name)
            except LayerwiseError as error:
                raise ConfigError(section, str(error), code=error.code) from None
            if section == "corpora" and name.endswith(RESERVED):
                problem = f"files of a corpus end in {', '.join(RESERVED)}; rename {name!r}."
                raise ConfigError(section, problem, code="bad_name")
            if (other := seen.setdefault(name.casefold(), name)) != name:
                problem = f"{other!r} and {name!r} differ only in case; rename one."
                raise ConfigError(section, problem, code="bad_name")


def _references(config: Config) -> Iterator[tuple[str, Iterable[Any], Iterable[Any]]]:
    """Each key that names things of another section, its names, and the known ones."""
    models, tasks, metrics = config.models, config.tasks, all_metrics()
    media = [name for name, c in config.corpora.items() if not isinstance(c, CorpusSettings)]
    for name, corpus in config.corpora.items():
        if isinstance(corpus.source, GeneratedTexts):
            where = f"corpora.{name}.source.generate.model"
            yield where, [corpus.source.generate.model], models
    yield "metrics.metrics", config.metrics.metrics or (), metrics
    yield "extract.arrays", config.extract.arrays, ARRAYS
    yield "metrics.settings", config.metrics.settings, sections()
    for name, task in tasks.items():
        if isinstance(task, LabelledEntry) and task.corpus is not None:
            yield f"tasks.{name}.corpus", [task.corpus], media
    for name, study in config.studies.items():
        where = f"studies.{name}"
        if study.published:
            yield f"{where}.published", [study.published], config.published
            continue
        yield f"{where}.models", study.models or (), models
        yield f"{where}.sizes", study.sizes or (), models
        yield f"{where}.corpora", study.corpora or (), [*config.corpora, OWN_TEXTS]
        yield f"{where}.tasks", study.tasks or (), tasks
        if isinstance(study.revisions, tuple):
            choices = [r for m in study.models or models for r in models[m].revisions]
            yield f"{where}.revisions", study.revisions, choices
    yield "association.directions", config.association.directions, metrics


def _check_recipes(config: Config) -> None:
    for folder, recipe in config.recipes.items():
        try:
            rules_of(recipe)
        except LayerwiseError as error:
            raise ConfigError(f"recipes.{folder}", str(error), code=error.code) from None


def _check_generation(config: Config) -> None:
    """Refuse to let a model write texts that has no unembedding, or is read in another way."""
    for name, corpus in config.corpora.items():
        if not isinstance(corpus.source, GeneratedTexts):
            continue
        model = corpus.source.generate.model
        entry = config.models[model]
        changed = entry.adapters or entry.ablate or entry.bidirectional
        if changed or isinstance(entry.source, StatesSource):
            where = f"corpora.{name}.source.generate.model"
            problem = (
                f"{model!r} writes no texts, since it has states, adapters, ablate or "
                "bidirectional; name a model without these."
            )
            raise ConfigError(where, problem, code="conflict")


def _check_tasks(config: Config) -> None:
    """Look up tasks of mteb by name, those that are the source of a corpus as well."""
    entries = {n: task for n, task in config.tasks.items() if isinstance(task, MtebEntry)}
    named = {f"tasks.{name}": name for name, entry in entries.items() if entry.type is None}
    for corpus, entry in config.corpora.items():
        task = getattr(entry.source, "task", None)
        if task is not None and task not in config.tasks:
            named[f"corpora.{corpus}.source.task"] = task
    for where, name in named.items():
        if name not in PAPER:  # importing mteb takes seconds
            try:
                catalog.get_task(name)
            except LayerwiseError as error:
                problem = str(error).removeprefix("tasks: ")
                raise ConfigError(where, problem, code="unknown_name") from None


def _check_prompts(config: Config) -> None:
    if not any(isinstance(entry.prompts, dict) for entry in config.models.values()):
        return
    from layerwise.tasks.task import DEFAULT, PROMPT_TYPES  # imports torch

    choices = {*PAPER, *TYPES, *config.tasks}
    for model, entry in config.models.items():
        for name in entry.prompts if isinstance(entry.prompts, dict) else ():
            head, _, tail = name.rpartition("-")
            base = head if tail in PROMPT_TYPES else name
            if name in (*PROMPT_TYPES, DEFAULT) or base in choices or catalog.is_known(base):
                continue
            problem = (
                f"there is no prompt {name!r}{closest(name, [*PROMPT_TYPES, DEFAULT, *choices])}; "
                "use query, document, default, a task or a task type of mteb, or one of these "
                "with -query or -document."
            )
            raise ConfigError(f"models.{model}.prompts", problem, code="unknown_name")


def _check_files(plan: Plan) -> None:
    config = plan.config
    results = Path(config.results)
    for path in (results, *results.parents):
        if path.exists() and not path.is_dir():
            raise ConfigError("results", f"{path} is a file; name a folder.", code="bad_name")
    for name, model in config.models.items():
        try:
            for revision in model.revisions:
                if plan.made_files(model.source, revision):
                    continue
                location = locate(model.source, revision)
                # Before the files of the folder are hashed, which may be all of a home's.
                if not location.folder or isinstance(model.source, StatesSource):
                    continue
                if not (location.gguf_file or is_file(location.folder / "config.json")):
                    problem = f"{location.folder} has no config.json; name the folder of a model."
                    raise LayerwiseError(problem)
                if pickled := getattr(model.source, "pickled", None):
                    for file in filter(None, (pickled.file, pickled.vocabulary)):
                        if not is_file(location.folder / file):
                            problem = (
                                f"{location.folder} has no {file}; name its file in `pickled`."
                            )
                            raise LayerwiseError(problem)
            for adapter in model.adapters:
                if not plan.made_files(adapter):
                    locate(adapter)
        except LayerwiseError as error:
            raise ConfigError(f"models.{name}", str(error), code="missing_file") from None
    for where, named in _data_files(config):
        if not (config.recipe_of(named) or is_file(named) or is_folder(named)):
            raise ConfigError(where, f"there is no {named}.", code="missing_file")


def local_files(config: Config) -> Iterator[tuple[str, str]]:
    """The user's files and folders that a config names: the keys, and the paths."""
    of_models = (paths_of(model, f"models.{name}") for name, model in config.models.items())
    for where, path in (*itertools.chain(*of_models), *_data_files(config)):
        if not config.recipe_of(path):
            yield where, path
    for name, corpus in config.corpora.items():
        hub = getattr(data_of(corpus.source), "hub", None)
        if hub and is_folder(hub):
            yield f"corpora.{name}.source.hub", hub


def _data_files(config: Config) -> Iterator[tuple[str, str]]:
    for section in ("published", "corpora", "tasks"):
        for name, entry in getattr(config, section).items():
            yield from paths_of(entry, f"{section}.{name}")


def _check_association(config: Config) -> None:
    """Refuse corpora and tasks that neither the config nor its published tables have."""
    texts, sources = config.association.own_texts, config.association.text_sources
    corpora, tasks = [*config.corpora], [*config.tasks, *PAPER]
    if {*texts} - {*corpora} or {*texts.values(), *sources} - {*tasks}:
        # pandas takes a second to import; most configs do not need it here.
        for entry in config.published.values():
            corpora += _names_in(Path(entry.metrics), "corpus", "dataset")
            tasks += _names_in(Path(entry.scores), "task") if entry.scores else []
    require_known("association.own_texts", texts, corpora)
    require_known("association.own_texts", texts.values(), tasks)
    require_known("association.text_sources", sources, tasks)


def _names_in(path: Path, *columns: str) -> list[str]:
    """The names in some columns of a published table, of those that it has."""
    from layerwise.io.delimited import read_table

    table = read_table(path)
    return [" ".join(str(n).split()) for c in columns if c in table for n in table[c].unique()]
