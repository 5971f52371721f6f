"""Checks that a config has what each of its studies shows, before any job runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from layerwise.config import Config
from layerwise.config.kinds import DIMENSIONS, key_of, placed, without_role
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import VARIANT, Study, several
from layerwise.config.tasks import ChoiceEntry
from layerwise.errors import Code, ConfigError, LayerwiseError, closest, listed
from layerwise.metrics.registry import QUANTITIES, all_metrics
from layerwise.names import size_of
from layerwise.run.plan import OF_METRICS, OF_RESULTS, OF_SCORES, PlannedStudy
from layerwise.tasks.catalog import TYPES
from layerwise.vocabulary import LABELS

Values = dict[str, tuple[Any, ...]]
Problem = tuple[str, str, Code]
"""A key of a study, or empty; what is wrong; and the error's code."""

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
        _raise_first(_published_problems(config, study, tables), where)
    else:
        _raise_first(_section_problems(planned, tables), where)
        offered = _offered(planned)
        for dimension, choices in offered.items():
            named = [*values.get(dimension, ())]
            if dimension in VARIANT:
                named += filter(None, (getattr(c, dimension) for c in study.metric_choices or ()))
            require_known(f"{where}.{key_of(dimension)}", named, choices)
        _raise_first(_metric_problems(planned, tables, values), where)
        values |= {d: values[d] or offered[d] for d in ("tokens", "sublayer") if d in values}
        values["model"] = planned.models
        values["revision"] = max(_with_checkpoints(planned).values(), key=len, default=())
        if not (study.corpora and tables & OF_RESULTS):  # where all texts of tasks are one corpus
            values["corpus"] = planned.corpora
        if study.declaration.needs_checkpoints:
            values["model"] = tuple(_with_checkpoints(planned))
        _raise_first(_number_problems(planned, values), where)
    for role, dimensions in study.assigned_roles.items():
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
        values["y"] = tuple(dict.fromkeys(curve.metric for curve in study.metric_choices or ()))
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
    if study.declaration.only_probes:
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
    labelled = " of your own labels" if study.declaration.only_probes else ""
    for section, (of_section, names) in needs.items():
        if tables & of_section and not names:
            problem = f"{study.kind} needs {section}{labelled}, and there are none; add some."
            yield "", problem, "missing"
    if study.declaration.needs_checkpoints and not _with_checkpoints(planned):
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
        types = types.union([declared]) if declared else types.union(*TYPES.values())
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
    for metric in wanted:
        if "prompts" in tables and not all_metrics()[metric].per_prompt:
            problem = f"{study.kind} needs a value for each prompt, and {metric} has one of all."
            yield "metrics", problem, "unsupported"
        if study.declaration.needs_orders and not all_metrics()[metric].orders:
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
            key = key_of(dimension)
            problem = f"{study.kind} compares {key}; name several under extract.{key}"
            yield key, problem + (", with `all` among them." if lacks_all else "."), "too_few"
    for key in kind.single:
        if len(several(getattr(study, key))) > 1:
            yield key, f"{study.kind} takes one of these; name one.", "ambiguous"
    if kind.needs_pairs and len(planned.points) < 2:
        problem = f"{study.kind} compares with the first; name another model or checkpoint."
        yield "models", problem, "too_few"
    for model in values["model"] if kind.needs_sizes else ():
        if size_of(model) is None and model not in (study.sizes or {}):
            problem = f"the name {model!r} has no number of parameters; give it under sizes."
            yield "sizes", problem, "missing"
    if study.over == "tasks" and OWN_TEXTS not in (study.corpora or ()):
        problem = f"over: tasks needs a metric on each task's texts; add {OWN_TEXTS!r}."
        yield "corpora", problem, "missing"


def _check_roles(study: Study, values: Values, tables: set[str]) -> None:
    """Require a role for every dimension with several values: a figure averages over none."""
    roles = study.roles_for(
        several_checkpoints=len(values["revision"]) > 1, n_models=len(values.get("model", ()))
    )
    shown = set(placed(roles))
    if "sublayer" not in shown and not study.sublayers:
        values.pop("sublayer", None)
    # How corpora of which one is perturbed differ is seen when the figure is drawn.
    if not tables & WITH_CORPORA or shown & set(LABELS):
        values.pop("corpus")
    if mixed := without_role({d: len(v) for d, v in values.items()}, roles):
        raise study.ambiguity(mixed[0], ", ".join(map(str, values[mixed[0]])))


def _union(groups: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))
