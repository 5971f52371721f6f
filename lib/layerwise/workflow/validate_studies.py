"""Checks that the config has what each study shows, before any job runs.

`layerwise.config.kinds` says what a kind of study reads and shows. Problems are
``(key of the study, problem, code)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.config.images import ImageCorpus
from layerwise.config.kinds import DIMENSIONS, KINDS, NAMES, needs, refuse, roles_of, without_role
from layerwise.config.studies import Study, several
from layerwise.config.tasks import MULTIPLE_CHOICE, TASK_TYPES, ChoiceTask, LabelledTask
from layerwise.errors import Code, closest
from layerwise.metrics.registry import all_metrics
from layerwise.metrics.sequence import QUANTITIES
from layerwise.names import size_of
from layerwise.tasks.names import QUICKSTART
from layerwise.workflow import studies
from layerwise.workflow.studies import OF_METRICS, OF_RESULTS, OF_SCORES

Problems = Iterator[tuple[str, str, Code]]
Values = dict[str, tuple[Any, ...]]

WITH_CORPORA = OF_METRICS | {"similarities"}


def problems(config: Config, name: str) -> Problems:
    """The problems of a study.

    Raises
    ------
    LayerwiseError
        If its roles do not fit its kind, or it would average over a dimension without a role.
    """
    study = config.studies[name]
    if study.y is not None and study.kind != "curves":
        yield "y", f"{study.kind} has no y; remove it", "unknown_key"
    tables = set(needs(study))
    if not tables:
        return
    if study.published:
        yield from _published(config, study, tables)
        values = {**_asked(study, tables), "revision": several(study.revisions)}
        values["corpus"] = study.corpora or ()
    else:
        yield from _sections(config, name, tables)
        offered = _offered(config, name)
        yield from _offered_values(study, tables, offered)
        values = _asked(study, tables) | {"model": studies.models(config, name)}
        values |= {d: values[d] or offered[d] for d in ("tokens", "sublayer") if d in values}
        values["corpus"] = study.corpora or tuple(config.corpora)
        swept = _swept(config, name)
        values["revision"] = max(swept.values(), key=len, default=())
        if KINDS[study.kind].checkpoints:
            values["model"] = tuple(swept)
        yield from _metrics(config, name, tables)
        yield from _of_the_kind(study, values)
    yield from _roles(config, study, values, tables)


def _published(config: Config, study: Study, tables: set[str]) -> Problems:
    lacking = sorted(tables - {"metrics", "scores"} - OF_RESULTS)
    lacking += ["probes"] if KINDS[study.kind].probes else []
    if lacking:
        problem = f"published tables have no {' or '.join(lacking)}; name `models` instead"
        yield "published", problem, "unknown_name"
    given = config.published.get(study.published or "")
    if given is not None and given.scores is None and tables & OF_SCORES:
        problem = f"{study.kind} needs scores; add published.{study.published}.scores"
        yield "published", problem, "unknown_name"


def _sections(config: Config, name: str, tables: set[str]) -> Problems:
    """The config has models, corpora and tasks for the tables of a study."""
    study = config.studies[name]
    kind, points = KINDS[study.kind], studies.points(config, name)
    computed = {"models": tables, "corpora": WITH_CORPORA | {"texts"}, "tasks": OF_SCORES}
    for section, of_section in computed.items():
        if tables & of_section and not getattr(config, section):
            problem = f"{study.kind} needs {section}, and the config has none; add some"
            yield "", problem, "missing"
    if kind.checkpoints and not _swept(config, name):
        problem = f"{study.kind} needs a model with several checkpoints; add models.….revisions"
        yield "", problem, "too_few"
    if len(points) < kind.points:
        problem = f"{study.kind} needs {kind.points} models or checkpoints; name more"
        yield "models", problem, "too_few"
    if OWN_TEXTS in (study.corpora or ()):
        if not OF_RESULTS & tables:
            yield "corpora", f"{study.kind} cannot use {OWN_TEXTS!r}; name corpora", "mismatch"
        elif not config.own_texts:
            problem = (
                f"no corpus has a task's own texts for {OWN_TEXTS!r}; add a corpus with the "
                "source {task: …}, or association.own_texts"
            )
            yield "corpora", problem, "missing"
    for corpus in studies.corpora(config, name) if "texts" in tables else ():
        if isinstance(config.corpora[corpus], ImageCorpus):
            problem = f"{study.kind} reads texts, and {corpus} has images; name others"
            yield "corpora", problem, "mismatch"
    if kind.probes and not studies.tasks(config, name):
        problem = "none of the tasks has labels to probe; name a task of your own labels"
        yield "tasks", problem, "mismatch"


def _swept(config: Config, name: str) -> dict[str, tuple[str, ...]]:
    """The checkpoints of each model of a study that has several."""
    found = {m: studies.revisions(config, name, m) for m in studies.models(config, name)}
    return {model: revisions for model, revisions in found.items() if len(revisions) > 1}


def _asked(study: Study, tables: set[str]) -> Values:
    """The values that a study names itself, of each dimension of its tables."""
    found: Values = {"tokens": study.tokens or ()}
    if tables & WITH_CORPORA:
        found["sublayer"] = study.sublayers or ()
        found["y"] = tuple(dict.fromkeys(curve.metric for curve in study.curves or ()))
        for key in ("protocol", "alpha", "normalization"):
            found[key] = several(getattr(study, key))
    if tables & OF_SCORES:
        found["pooling"] = several(study.pooling)
        found["task_type"] = study.task_types or ()
    return found


def _offered(config: Config, name: str) -> Values:
    """The values of each dimension that the config extracts, computes or scores."""
    runs = [
        config.extraction(model, corpus)
        for model in studies.models(config, name)
        for corpus in studies.corpora(config, name) or (None,)
    ]
    protocols = [p for p in runs[0].protocols if all(p in run.protocols for run in runs)]
    return {
        "tokens": _union(run.tokens for run in runs),
        "sublayer": ("block", *_union(run.sublayers for run in runs)),
        "protocol": config.metrics.protocols or tuple(protocols),
        "alpha": config.metrics.alphas,
        "normalization": ("raw", *config.metrics.normalizations),
        "pooling": _poolings(config, name),
        "task_type": _task_types(config, name),
    }


def _poolings(config: Config, name: str) -> tuple[str, ...]:
    """The poolings of a study's scores, with the readout where several are scored."""
    tasks = [config.tasks[task] for task in studies.tasks(config, name)]
    found: dict[tuple[str, str], None] = {}
    for model, task in product(studies.models(config, name), tasks):
        scoring = config.scoring_of(model)
        if isinstance(task, ChoiceTask):
            found |= dict.fromkeys(product(task.forms, ("final_norm",)))
        else:
            found |= dict.fromkeys(product(scoring.poolings, scoring.readouts))
    alone = len({readout for _, readout in found}) < 2
    return _union([[p if alone or r == "final_norm" else f"{p}, {r}"] for p, r in found])


def _task_types(config: Config, name: str) -> tuple[str, ...]:
    """The types of a study's tasks; none if that of some task is unknown before it is loaded."""
    found: list[str] = []
    for task in studies.tasks(config, name):
        entry = config.tasks[task]
        if isinstance(entry, LabelledTask):
            found.append(TASK_TYPES[entry.kind])
        elif isinstance(entry, ChoiceTask):
            found.append(MULTIPLE_CHOICE)
        elif task in QUICKSTART:
            found.append(QUICKSTART[task])
        else:
            return ()
    return tuple(sorted(set(found)))


def _offered_values(study: Study, tables: set[str], offered: Values) -> Problems:
    """The values that a study names are offered."""
    asked = _asked(study, tables)
    for key in ("protocol", "alpha", "normalization") if tables & WITH_CORPORA else ():
        own = (getattr(curve, key) for curve in study.curves or ())
        asked[key] = (*asked[key], *(value for value in own if value is not None))
    for dimension, there in offered.items():
        for value in asked.get(dimension, ()) if there or dimension != "task_type" else ():
            if value not in there:
                near = closest(value, there) if isinstance(value, str) else ""
                names = ", ".join(_text(v) for v in there) or "none"
                problem = f"the config has no {_text(value)}{near}, only {names}"
                yield NAMES.get(dimension, dimension), problem, "unknown_value"


def _metrics(config: Config, name: str, tables: set[str]) -> Problems:
    """The metrics of a study can be computed on its corpora."""
    study = config.studies[name]
    if not tables & WITH_CORPORA:
        return
    wanted = _asked(study, tables)["y"]
    corpora = {c: config.corpora[c] for c in studies.corpora(config, name)}
    known = list(config.metrics.metrics or all_metrics())
    if "positions" in tables:
        known = list(QUANTITIES)
    for metric in wanted:
        if metric not in known:
            hint = closest(metric, known) or f", only {', '.join(known[:12])}"
            problem = f"the config has no metric {metric!r}{hint}"
            if study.metrics is None:
                problem += f"; {study.kind} shows {', '.join(wanted)} unless you name others"
            yield "metrics", problem, "unknown_name"
    if "prefix_entropy" in wanted and "positions" in tables:
        for corpus, entry in corpora.items():
            if not entry.override(config.extract).prefixes:
                problem = f"prefix_entropy needs extract.prefixes or corpora.{corpus}.prefixes"
                yield "metrics", problem, "missing"
        models = studies.models(config, name)
        both = [model for model in models if config.models[model].bidirectional]
        # Those of "all models" that have no prefixes are left out of the figure.
        if both and (study.models is not None or len(both) == len(models)):
            problem = (
                f"tokens of {' and '.join(both)} attend to later ones, so their prefixes have no "
                "entropy of their own; name causal models"
            )
            yield "models", problem, "unsupported"
    if "sink_rate" in wanted and not config.extract.attention:
        yield "metrics", "sink_rate needs attention; set extract.attention: true", "missing"
    views = min((entry.views.n for entry in corpora.values()), default=0)
    for metric in wanted or config.metrics.metrics or ():
        if metric in all_metrics() and (least := all_metrics()[metric].min_views) > views:
            problem = (
                f"{metric} needs {least} views of each prompt, and {' and '.join(corpora)} has "
                f"{views}; raise corpora.….views.n"
            )
            yield "metrics", problem, "too_few"


def _of_the_kind(study: Study, values: Values) -> Problems:
    """A study has as many values of each dimension as its kind takes."""
    kind = KINDS[study.kind]
    for dimension in kind.compares:
        lacks_all = dimension == "tokens" and "all" not in values[dimension]
        if len(values[dimension]) < 2 or lacks_all:
            key = NAMES[dimension]
            problem = f"{study.kind} compares {key}; name several under extract.{key}"
            problem += ", with `all` among them" if lacks_all else ""
            yield key if getattr(study, key) else "", problem, "too_few"
    for dimension in kind.one:
        if len(values[dimension]) > 1:
            yield NAMES[dimension], f"{study.kind} shows one; name one", "ambiguous"
    if study.kind == "size_scaling":
        for model in values["model"]:
            if model not in (study.sizes or {}) and size_of(model) is None:
                problem = f"the name {model!r} has no number of parameters; add it here"
                yield "sizes", problem, "missing"
    if not OF_RESULTS & set(kind.needs):
        return
    if "scores" not in kind.needs and len(values["y"]) < len(study.curves or ()):
        yield "metrics", f"{study.kind} shows one variant of a metric; name one", "ambiguous"
    if len(values.get("task_type", ())) > 1:
        yield "task_types", f"{study.kind} takes one task type or all; name one", "ambiguous"
    if study.kind == "association_strength" and study.measure == "all":
        yield "measure", "association_strength draws one measure; name one", "ambiguous"
    if study.over == "tasks" and OWN_TEXTS not in (study.corpora or ()):
        problem = f"over: tasks needs a metric on each task's texts; add {OWN_TEXTS!r}"
        yield "corpora", problem, "missing"


def _roles(config: Config, study: Study, values: Values, tables: set[str]) -> Problems:
    """Every dimension with several values has a role: a figure averages over none unseen."""
    labels = {} if study.published else config.labels()
    known = [*DIMENSIONS, *_union(labels.values())]
    for role, dimensions in study.roles.items():
        for name in dimensions:
            if name not in known:
                hint = closest(name, known) or f"; choose from {', '.join(known)}"
                yield role, f"unknown dimension {name!r}{hint}", "unknown_value"
    roles = roles_of(study, several=len(values["revision"]) > 1)
    placed = {d for dimensions in roles.values() for d in dimensions}
    if "sublayer" not in placed and not study.sublayers:
        values.pop("sublayer", None)
    if not tables & WITH_CORPORA:
        values.pop("corpus")
    values |= _perturbations(values.get("corpus", ()), labels, placed)
    for dimension in without_role({d: len(v) for d, v in values.items()}, roles):
        raise refuse(study, dimension, ", ".join(map(_text, values[dimension])))


def _perturbations(
    corpora: Iterable[str], labels: Mapping[str, Mapping[str, float]], placed: set[str]
) -> Values:
    """The values of each perturbation, and the corpora that differ in none with a role."""
    given = {corpus: labels.get(corpus, {}) for corpus in corpora}
    dimensions = _union(given.values())
    alike: Values = {}
    for corpus, own in given.items():
        key = str([own.get(d) for d in dimensions if d in placed])
        alike[key] = (*alike.get(key, ()), corpus)
    found = {d: _union([own.get(d, "")] for own in given.values()) for d in dimensions}
    return {**found, "corpus": max(alike.values(), key=len, default=())}


def _union(groups: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
