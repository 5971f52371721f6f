"""Checks of a config that need more than one section, or this machine, before any job runs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from layerwise.config import Config
from layerwise.config.corpora import GeneratedTexts, MediaCorpus, data_of
from layerwise.config.kinds import DIMENSIONS, NAMES, placed, without_role
from layerwise.config.models import StatesSource
from layerwise.config.reading import Loader, read_yaml
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import VARIANT, Study, several
from layerwise.config.tasks import ChoiceEntry, LabelledEntry, MtebEntry
from layerwise.errors import Code, ConfigError, LayerwiseError, closest, listed
from layerwise.io.files import is_file, is_folder
from layerwise.metrics.registry import all_metrics, sections
from layerwise.metrics.sequence import QUANTITIES
from layerwise.models.source import locate
from layerwise.names import RESERVED, encode, size_of
from layerwise.project import rules_of
from layerwise.run.plan import OF_METRICS, OF_RESULTS, OF_SCORES, Plan, PlannedStudy, paths_of
from layerwise.tasks import catalog
from layerwise.tasks.catalog import AUDIO_TYPES, IMAGE_TYPES, PAPER, TYPES
from layerwise.vocabulary import LABELS

log = logging.getLogger(__name__)

Values = dict[str, tuple[Any, ...]]
Problem = tuple[str, str, Code]
"""A key of a study, or empty; what is wrong; and the error's code."""

WITH_CORPORA = OF_METRICS | {"similarities"}


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
        return validate(Config.of(_with_numbers(document, documents)))
    except ConfigError as error:
        raise error.in_file(", ".join(map(str, files))) from None


def _with_numbers(value: Any, in_files: Sequence[Any]) -> Any:
    """Read the values of ``--config 'extract={threads: 4}'``, which Snakemake leaves as text."""
    if isinstance(value, Mapping):
        mappings = [each for each in in_files if isinstance(each, Mapping)]
        return {k: _with_numbers(v, [m[k] for m in mappings if k in m]) for k, v in value.items()}
    if isinstance(value, list):
        items = [item for each in in_files if isinstance(each, list) for item in each]
        return [_with_numbers(item, items) for item in value]
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
    media = [name for name, c in config.corpora.items() if isinstance(c, MediaCorpus)]
    for name, corpus in config.corpora.items():
        if isinstance(corpus.source, GeneratedTexts):
            where = f"corpora.{name}.source.generate.model"
            yield where, [corpus.source.generate.model], models
    yield "metrics.metrics", config.metrics.metrics or (), metrics
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
        from layerwise.association.published import names_in

        for entry in config.published.values():
            corpora += names_in(Path(entry.metrics), "corpus", "dataset")
            tasks += names_in(Path(entry.scores), "task") if entry.scores else []
    require_known("association.own_texts", texts, corpora)
    require_known("association.own_texts", texts.values(), tasks)
    require_known("association.text_sources", sources, tasks)


# Studies


def check_study(planned: PlannedStudy) -> None:
    """Check that a config has what one of its studies shows.

    Raises
    ------
    ConfigError
        If something is missing, or the study would average over a dimension without a role.
    """
    config, study, where = planned.config, planned.study, f"studies.{planned.name}"
    tables = set(planned.needs)
    if study.y is not None and study.kind != "curves":
        raise ConfigError(f"{where}.y", f"{study.kind} has no y; remove it.", code="unknown_key")
    if not tables:
        return
    values = _values(study, tables)
    if study.published:
        _raise_first(_published_problems(config, study, tables), where)
    else:
        _raise_first(_section_problems(planned, tables), where)
        offered = _offered(planned)
        for dimension, choices in offered.items():
            named = [*values.get(dimension, ())]
            if dimension in VARIANT:
                named += filter(None, (getattr(c, dimension) for c in study.curves or ()))
            require_known(f"{where}.{NAMES.get(dimension, dimension)}", named, choices)
        _raise_first(_metric_problems(planned, tables, values), where)
        values |= {d: values[d] or offered[d] for d in ("tokens", "sublayer") if d in values}
        values["model"] = planned.models
        values["revision"] = max(_with_checkpoints(planned).values(), key=len, default=())
        if not (study.corpora and tables & OF_RESULTS):  # where all texts of tasks are one corpus
            values["corpus"] = planned.corpora
        if study.declaration.checkpoints:
            values["model"] = tuple(_with_checkpoints(planned))
        _raise_first(_number_problems(planned, values), where)
    for role, dimensions in study.roles.items():
        labels = LABELS if study.published else _union(config.labels().values())
        known_dimensions = [*DIMENSIONS, *labels]
        require_known(f"{where}.{role}", dimensions, known_dimensions)
    try:
        _check_roles(study, values, tables)
    except LayerwiseError as error:
        raise ConfigError(where, str(error), code=error.code) from None


def require_known(where: str, names: Iterable[Any], known: Iterable[Any], more: str = "") -> None:
    """Refuse a name that is not known; the error has the nearest one, or the known ones."""
    choices = list(dict.fromkeys(known))
    for name in names:
        if name not in choices:
            hint = closest(str(name), map(str, choices)) or f", only {listed(choices)}"
            raise ConfigError(where, f"there is no {name!r}{hint}{more}.", code="unknown_name")


def _values(study: Study, tables: set[str]) -> Values:
    """The values that a study names itself, of each dimension of its tables."""
    values: Values = {"tokens": study.tokens or (), "revision": several(study.revisions)}
    values["corpus"] = study.corpora or ()
    if tables & WITH_CORPORA:
        values["sublayer"] = study.sublayers or ()
        values["y"] = tuple(dict.fromkeys(curve.metric for curve in study.curves or ()))
        values |= {key: several(getattr(study, key)) for key in VARIANT}
    if tables & OF_SCORES:
        values["pooling"] = several(study.pooling)
    return values


def _offered(planned: PlannedStudy) -> Values:
    """The values of each dimension that the config extracts, computes or scores."""
    config, models = planned.config, planned.models
    runs = [
        config.extraction(model, corpus)
        for model in models
        for corpus in planned.corpora or (None,)
    ]
    poolings: list[str] = [p for model in models for p in config.scoring_of(model).poolings]
    choices = [t for t in config.tasks.values() if isinstance(t, ChoiceEntry)]
    poolings += [form for task in choices for form in task.forms]
    return {
        "tokens": _union(run.tokens for run in runs),
        "sublayer": ("block", *_union(run.sublayers for run in runs)),
        "protocol": _union(run.protocols for run in runs),
        "alpha": config.metrics.alphas,
        "normalization": ("raw", *config.metrics.normalizations),
        "pooling": (*poolings, *(f"{p}, residual" for p in poolings)),
    }


def _raise_first(problems: Iterator[Problem], where: str) -> None:
    for key, problem, code in problems:
        raise ConfigError(f"{where}.{key}" if key else where, problem, code=code)


def _published_problems(config: Config, study: Study, tables: set[str]) -> Iterator[Problem]:
    lacking = sorted(tables - {"metrics", "scores"} - OF_RESULTS)
    if study.declaration.probes:
        lacking.append("probes")
    elif tables & OF_SCORES and config.published[study.published or ""].scores is None:
        lacking.append("scores")
    if lacking:
        problem = f"these published tables have no {' or '.join(lacking)}; name `models` instead."
        yield "published", problem, "unknown_name"


def _section_problems(planned: PlannedStudy, tables: set[str]) -> Iterator[Problem]:
    """Models, corpora and tasks that the tables of a study need and the config lacks."""
    study = planned.study
    needs: dict[str, tuple[set[str], Iterable[str]]] = {
        "models": (tables, planned.models),
        "corpora": (WITH_CORPORA | {"texts"}, planned.corpora),
        "tasks": (OF_SCORES, planned.tasks),
    }
    labelled = " of your own labels" if study.declaration.probes else ""
    for section, (of_section, names) in needs.items():
        if tables & of_section and not names:
            problem = f"{study.kind} needs {section}{labelled}, and there are none; add some."
            yield "", problem, "missing"
    if study.declaration.checkpoints and not _with_checkpoints(planned):
        problem = f"{study.kind} needs a model with several checkpoints; add models.….revisions."
        yield "", problem, "too_few"
    for model in study.models or ():
        if not planned.revisions[model]:
            problem = f"{model} has none of these checkpoints; name others, or remove the model."
            yield "revisions", problem, "too_few"
    if study.task_types and tables & OF_SCORES:
        where = f"studies.{planned.name}.task_types"
        require_known(where, study.task_types, _task_types(planned))


def _task_types(planned: PlannedStudy) -> set[str]:
    """The types of a study's tasks; every type where only mteb knows a task's type."""
    types: set[str] = set()
    for task in planned.tasks:
        declared = getattr(planned.config.tasks[task], "task_type", None)
        types |= {declared} if declared else {*TYPES, *IMAGE_TYPES, *AUDIO_TYPES}
    return types


def _with_checkpoints(planned: PlannedStudy) -> dict[str, tuple[str, ...]]:
    """The checkpoints of each model of a study that has several."""
    return {model: names for model, names in planned.revisions.items() if len(names) > 1}


def _metric_problems(planned: PlannedStudy, tables: set[str], values: Values) -> Iterator[Problem]:
    """Metrics of a study that cannot be computed on its corpora."""
    config, study = planned.config, planned.study
    if not tables & WITH_CORPORA:
        return
    wanted, metrics = values["y"], config.metrics.metrics or tuple(all_metrics())
    unnamed = "" if study.metrics else f"; {study.kind} shows it unless you name others"
    choices = QUANTITIES if "positions" in tables else metrics
    require_known(f"studies.{planned.name}.metrics", wanted, choices, unnamed)
    for metric in wanted if "prompts" in tables else ():
        if not all_metrics()[metric].per_prompt:
            problem = f"{study.kind} needs a value for each prompt, and {metric} has one of all."
            yield "metrics", problem, "unsupported"
        if study.declaration.orders and not all_metrics()[metric].orders:
            problem = f"{study.kind} is about α, which {metric} lacks; name prompt_entropy."
            yield "metrics", problem, "unsupported"
    corpora = {c: config.corpora[c] for c in planned.corpora}
    for corpus, entry in corpora.items() if "prefix_entropy" in wanted else ():
        if not entry.override(config.extract).prefixes:
            problem = f"prefix_entropy needs extract.prefixes or corpora.{corpus}.prefixes."
            yield "metrics", problem, "missing"
    if "sink_rate" in wanted and not config.extract.attention:
        yield "metrics", "sink_rate needs attention; set extract.attention: true.", "missing"
    views = min((entry.views.n for entry in corpora.values()), default=0)
    for metric in wanted or config.metrics.metrics or ():
        if metric in all_metrics() and (least := all_metrics()[metric].min_views) > views:
            problem = (
                f"{metric} needs {least} views of each prompt, and {' and '.join(corpora)} has "
                f"{views}; raise corpora.….views.n."
            )
            yield "metrics", problem, "too_few"


def _number_problems(planned: PlannedStudy, values: Values) -> Iterator[Problem]:
    """Dimensions with fewer or more values than the kind of a study takes."""
    study, kind = planned.study, planned.study.declaration
    for dimension in kind.compares:
        lacks_all = dimension == "tokens" and "all" not in values[dimension]
        if len(values[dimension]) < 2 or lacks_all:
            key = NAMES[dimension]
            problem = f"{study.kind} compares {key}; name several under extract.{key}"
            yield key, problem + (", with `all` among them." if lacks_all else "."), "too_few"
    for key in kind.single:
        if len(several(getattr(study, key))) > 1:
            yield key, f"{study.kind} takes one of these; name one.", "ambiguous"
    if kind.pairs and len(planned.points) < 2:
        problem = f"{study.kind} compares with the first; name another model or checkpoint."
        yield "models", problem, "too_few"
    for model in values["model"] if kind.sizes else ():
        if size_of(model) is None and model not in (study.sizes or {}):
            problem = f"the name {model!r} has no number of parameters; give it under sizes."
            yield "sizes", problem, "missing"
    if study.over == "tasks" and OWN_TEXTS not in (study.corpora or ()):
        problem = f"over: tasks needs a metric on each task's texts; add {OWN_TEXTS!r}."
        yield "corpora", problem, "missing"


def _check_roles(study: Study, values: Values, tables: set[str]) -> None:
    """Require a role for every dimension with several values: a figure averages over none."""
    roles = study.all_roles(
        several_checkpoints=len(values["revision"]) > 1, n_models=len(values.get("model", ()))
    )
    shown = set(placed(roles))
    if "sublayer" not in shown and not study.sublayers:
        values.pop("sublayer", None)
    # How corpora of which one is perturbed differ is seen when the figure is drawn.
    if not tables & WITH_CORPORA or shown & set(LABELS):
        values.pop("corpus")
    for dimension in without_role({d: len(v) for d, v in values.items()}, roles):
        raise study.ambiguity(dimension, ", ".join(map(str, values[dimension])))


def _union(groups: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))
