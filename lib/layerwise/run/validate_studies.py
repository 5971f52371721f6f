"""Checks that the config has what each study shows, before any job runs.

`layerwise.config.kinds` says what a kind of study reads and shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerwise.config import Config
from layerwise.config.kinds import DIMENSIONS, NAMES, placed, without_role
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import VARIANT, Study, several
from layerwise.config.tasks import ChoiceEntry
from layerwise.errors import ConfigError, LayerwiseError, closest, listed
from layerwise.metrics.registry import all_metrics
from layerwise.metrics.sequence import QUANTITIES
from layerwise.names import size_of
from layerwise.run.plan import OF_METRICS, OF_RESULTS, OF_SCORES, PlannedStudy
from layerwise.tasks.names import AUDIO_TYPES, IMAGE_TYPES, QUICKSTART, TYPES
from layerwise.vocabulary import LABELS

Values = dict[str, tuple[Any, ...]]

WITH_CORPORA = OF_METRICS | {"similarities"}


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
        _check_published(config, study, tables, f"{where}.published")
    else:
        _check_sections(planned, tables)
        offered = _offered(planned)
        for dimension, known in offered.items():
            named = [*values.get(dimension, ())]
            if dimension in VARIANT:
                named += filter(None, (getattr(c, dimension) for c in study.curves or ()))
            require_known(f"{where}.{NAMES.get(dimension, dimension)}", named, known)
        _check_metrics(planned, tables, values)
        values |= {d: values[d] or offered[d] for d in ("tokens", "sublayer") if d in values}
        values["model"] = planned.models
        values["revision"] = max(_swept(planned).values(), key=len, default=())
        if not (study.corpora and tables & OF_RESULTS):  # where all texts of tasks are one corpus
            values["corpus"] = planned.corpora
        if study.declaration.checkpoints:
            values["model"] = tuple(_swept(planned))
        _check_numbers(planned, values)
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
    there = list(dict.fromkeys(known))
    for name in names:
        if name not in there:
            hint = closest(str(name), map(str, there)) or f", only {listed(there)}"
            raise ConfigError(where, f"there is no {name!r}{hint}{more}.", code="unknown_name")


def _values(study: Study, tables: set[str]) -> Values:
    """The values that a study names itself, of each dimension of its tables."""
    found: Values = {"tokens": study.tokens or (), "revision": several(study.revisions)}
    found["corpus"] = study.corpora or ()
    if tables & WITH_CORPORA:
        found["sublayer"] = study.sublayers or ()
        found["y"] = tuple(dict.fromkeys(curve.metric for curve in study.curves or ()))
        found |= {key: several(getattr(study, key)) for key in VARIANT}
    if tables & OF_SCORES:
        found["pooling"] = several(study.pooling)
    return found


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


def _check_published(config: Config, study: Study, tables: set[str], where: str) -> None:
    lacking = sorted(tables - {"metrics", "scores"} - OF_RESULTS)
    if study.declaration.probes:
        lacking.append("probes")
    elif tables & OF_SCORES and config.published[study.published or ""].scores is None:
        lacking.append("scores")
    if lacking:
        problem = f"these published tables have no {' or '.join(lacking)}; name `models` instead."
        raise ConfigError(where, problem, code="unknown_name")


def _check_sections(planned: PlannedStudy, tables: set[str]) -> None:
    """Require models, corpora and tasks for the tables of a study."""
    study, where = planned.study, f"studies.{planned.name}"
    read: dict[str, tuple[set[str], Iterable[str]]] = {
        "models": (tables, planned.models),
        "corpora": (WITH_CORPORA | {"texts"}, planned.corpora),
        "tasks": (OF_SCORES, planned.tasks),
    }
    for section, (of_section, names) in read.items():
        if tables & of_section and not names:
            labelled = " of your own labels" if study.declaration.probes else ""
            problem = f"{study.kind} needs {section}{labelled}, and there are none; add some."
            raise ConfigError(where, problem, code="missing")
    if study.declaration.checkpoints and not _swept(planned):
        problem = f"{study.kind} needs a model with several checkpoints; add models.….revisions."
        raise ConfigError(where, problem, code="too_few")
    for model in study.models or ():
        if not planned.revisions[model]:
            problem = f"{model} has none of these checkpoints; name others, or remove the model."
            raise ConfigError(f"{where}.revisions", problem, code="too_few")
    if study.task_types and tables & OF_SCORES:
        require_known(f"{where}.task_types", study.task_types, _task_types(planned))


def _task_types(planned: PlannedStudy) -> set[str]:
    """The types of a study's tasks; every type where only mteb knows a task's own."""
    found: set[str] = set()
    for task in planned.tasks:
        own = QUICKSTART.get(task) or getattr(planned.config.tasks[task], "task_type", None)
        found |= {own} if own else {*TYPES, *IMAGE_TYPES, *AUDIO_TYPES}
    return found


def _swept(planned: PlannedStudy) -> dict[str, tuple[str, ...]]:
    """The checkpoints of each model of a study that has several."""
    return {model: found for model, found in planned.revisions.items() if len(found) > 1}


def _check_metrics(planned: PlannedStudy, tables: set[str], values: Values) -> None:
    """Require that the metrics of a study can be computed on its corpora."""
    config, study, where = planned.config, planned.study, f"studies.{planned.name}.metrics"
    if not tables & WITH_CORPORA:
        return
    wanted, metrics = values["y"], config.metrics.metrics or tuple(all_metrics())
    unnamed = "" if study.metrics else f"; {study.kind} shows it unless you name others"
    require_known(where, wanted, QUANTITIES if "positions" in tables else metrics, unnamed)
    for metric in wanted if "prompts" in tables else ():
        if not all_metrics()[metric].per_prompt:
            problem = f"{study.kind} needs a value for each prompt, and {metric} has one of all."
            raise ConfigError(where, problem, code="unsupported")
        if study.declaration.orders and not all_metrics()[metric].orders:
            problem = f"{study.kind} is about α, which {metric} lacks; name prompt_entropy."
            raise ConfigError(where, problem, code="unsupported")
    corpora = {c: config.corpora[c] for c in planned.corpora}
    if "prefix_entropy" in wanted:
        for corpus, entry in corpora.items():
            if not entry.override(config.extract).prefixes:
                problem = f"prefix_entropy needs extract.prefixes or corpora.{corpus}.prefixes."
                raise ConfigError(where, problem, code="missing")
    if "sink_rate" in wanted and not config.extract.attention:
        problem = "sink_rate needs attention; set extract.attention: true."
        raise ConfigError(where, problem, code="missing")
    views = min((entry.views.n for entry in corpora.values()), default=0)
    for metric in wanted or config.metrics.metrics or ():
        if metric in all_metrics() and (least := all_metrics()[metric].min_views) > views:
            problem = (
                f"{metric} needs {least} views of each prompt, and {' and '.join(corpora)} has "
                f"{views}; raise corpora.….views.n."
            )
            raise ConfigError(where, problem, code="too_few")


def _check_numbers(planned: PlannedStudy, values: Values) -> None:
    """Require as many values of each dimension as the kind of a study takes."""
    study, where = planned.study, f"studies.{planned.name}"
    kind = study.declaration
    for dimension in kind.compares:
        lacks_all = dimension == "tokens" and "all" not in values[dimension]
        if len(values[dimension]) < 2 or lacks_all:
            key = NAMES[dimension]
            problem = f"{study.kind} compares {key}; name several under extract.{key}"
            problem += ", with `all` among them." if lacks_all else "."
            raise ConfigError(f"{where}.{key}", problem, code="too_few")
    for key in kind.single:
        if len(several(getattr(study, key))) > 1:
            problem = f"{study.kind} takes one of these; name one."
            raise ConfigError(f"{where}.{key}", problem, code="ambiguous")
    if kind.pairs and len(planned.points) < 2:
        problem = f"{study.kind} compares with the first; name another model or checkpoint."
        raise ConfigError(f"{where}.models", problem, code="too_few")
    for model in values["model"] if kind.sizes else ():
        if size_of(model) is None and model not in (study.sizes or {}):
            problem = f"the name {model!r} has no number of parameters; give it under sizes."
            raise ConfigError(f"{where}.sizes", problem, code="missing")
    if study.over == "tasks" and OWN_TEXTS not in (study.corpora or ()):
        problem = f"over: tasks needs a metric on each task's texts; add {OWN_TEXTS!r}."
        raise ConfigError(f"{where}.corpora", problem, code="missing")


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
