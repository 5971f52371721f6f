"""Checks of a config that need more than one section, or this machine, before any job runs.

Each check is a generator of problems ``(where, problem, code)``. `validate` raises the first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.config.extraction import ExtractSettings
from layerwise.config.images import FolderImages, ImageCorpus
from layerwise.config.kinds import DIMENSIONS, KINDS, needs, refuse, roles_of, without_role
from layerwise.config.reading import read_yaml
from layerwise.config.studies import Study, corpora_of, revisions_of, several
from layerwise.config.tasks import (
    MULTIPLE_CHOICE,
    TASK_TYPES,
    ChoiceTask,
    FileQuestions,
    LabelledTask,
    MtebTask,
)
from layerwise.errors import ConfigError, LayerwiseError, closest
from layerwise.io.files import is_file, is_folder
from layerwise.metrics.registry import all_metrics, sections
from layerwise.metrics.sequence import QUANTITIES
from layerwise.models.source import locate
from layerwise.names import encode, size_of, trained
from layerwise.section import parse
from layerwise.tasks.names import DEFAULT, PAPER, PROMPT_TYPES, QUICKSTART, TYPES

log = logging.getLogger(__name__)

Problems = Iterator[tuple[str, str, str]]

# Characters of a path that Snakemake reads as a pattern, or a shell as more than text.
UNSAFE = re.compile(r"[{}\x00-\x1f\x7f]|^[~-]|^\s|\s$|//")
LONGEST_PART = 100

OF_METRICS = {"metrics", "prompts", "positions", "associations", "selections", "similarities"}
OF_SCORES = {"scores", "associations", "selections"}
# Kinds that compare all tokens with other selections.
TOKEN_KINDS = {"attention_sink", "token_selection"}
# Kinds that show each token selection and pooling in a column.
READING_KINDS = {"layer_selection", "association_strength"}


def validate(config: Config, files: Iterable[str | Path] = ()) -> None:
    """Check that the sections of a config fit together and that its files exist.

    Parameters
    ----------
    config : Config
    files : paths, optional
        The config's files. Snakemake keeps the last of two equal keys; reading them again finds
        those.

    Raises
    ------
    ConfigError
        In one sentence: the file, the key, what is wrong, and how to fix it.
    """
    paths = [Path(file) for file in files]
    read_yaml(paths)
    for check in CHECKS:
        for where, problem, code in check(config):
            file = ", ".join(map(str, paths))
            raise ConfigError(where, problem + ".", code=code, file=file)
    for section, names in unused(config).items():
        log.info("%s: no study uses %s; nothing is computed there.", section, ", ".join(names))


def unused(config: Config) -> dict[str, list[str]]:
    """Models, corpora and tasks that no study uses, by section."""
    used: dict[str, set[str]] = {"models": set(), "corpora": set(), "tasks": set()}
    for study in config.studies.values():
        tables = set(needs(study))
        if study.published or not tables:
            continue
        used["models"] |= set(study.models or config.models)
        if tables & (OF_METRICS | {"texts"}):
            used["corpora"] |= set(_corpora(config, study))
        if tables & (OF_SCORES | {"probes"}):
            used["tasks"] |= set(study.tasks or config.tasks)
    used["corpora"] |= {t.corpus for t in _labelled(config).values() if t.corpus is not None}
    found = {s: [n for n in getattr(config, s) if n not in names] for s, names in used.items()}
    return {section: names for section, names in found.items() if names}


# Names and paths


def _results(config: Config) -> Problems:
    parts = PurePath(config.results).parts
    too_long = len(parts) > 30 or any(len(part.encode()) > LONGEST_PART for part in parts)
    if too_long or UNSAFE.search(config.results) or parts in ((), ("/",), (".",)) or ".." in parts:
        yield (
            "results",
            f"{config.results!r} cannot be the results folder; name one without '..', braces, "
            f"line breaks, a leading '~' or '-', or parts of over {LONGEST_PART} characters",
            "bad_path",
        )


def _names(config: Config) -> Problems:
    sections: dict[str, Iterable[str]] = {
        name: getattr(config, name)
        for name in ("models", "corpora", "tasks", "published", "studies")
    }
    sections |= {f"models.{m}.revisions": entry.revisions for m, entry in config.models.items()}
    for where, names in sections.items():
        seen: dict[str, str] = {}
        for name in names:
            # Many file systems ignore case.
            other = seen.setdefault(encode(name).casefold(), name)
            if other != name:
                yield where, f"{other!r} and {name!r} differ only in case; rename one", "bad_name"
    for corpus in config.corpora:
        if corpus.endswith((".views", ".prompts", ".positions")):
            yield f"corpora.{corpus}", "other files have this ending; rename it", "bad_name"


# Names that one section takes from another


def _references(config: Config) -> Problems:
    for where, names, known in _named(config):
        for name in names:
            if name not in known:
                there = ", ".join(sorted(map(str, known))[:12]) or "none"
                hint = closest(str(name), map(str, known)) or f"; there are {there}"
                yield where, f"there is no {name!r}{hint}", "unknown_name"


def _named(config: Config) -> Iterator[tuple[str, Iterable[Any], Iterable[Any]]]:
    """Each key that names things of another section, its names, and the known ones."""
    models, tasks, metrics = config.models, config.tasks, all_metrics()
    images = [name for name, c in config.corpora.items() if isinstance(c, ImageCorpus)]
    yield "nano", config.nano, models
    yield "metrics.metrics", config.metrics.metrics or (), metrics
    yield "metrics.settings", config.metrics.settings, sections()
    for name, task in _labelled(config).items():
        yield f"tasks.{name}.corpus", several(task.corpus), images
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
            for model in study.models or models:
                there = models[model].revisions if model in models else study.revisions
                yield f"{where}.revisions", study.revisions, there
    given = config.association
    yield "association.directions", given.directions, metrics
    # Published tables have corpora, tasks and alphas of their own.
    if not config.published:
        known = [*tasks, *QUICKSTART, *PAPER]
        yield "association.own_texts", given.own_texts, config.corpora
        yield "association.own_texts", given.own_texts.values(), known
        yield "association.text_sources", given.text_sources, known


def _labelled(config: Config) -> dict[str, LabelledTask]:
    return {n: task for n, task in config.tasks.items() if isinstance(task, LabelledTask)}


# Sections


def _nano(config: Config) -> Problems:
    rules: dict[str, str] = {}
    for model, nano in config.nano.items():
        other = rules.setdefault(re.sub(r"\W", "_", model), model)
        if other != model:
            yield (
                "nano",
                f"{other!r} and {model!r} differ only in punctuation; rename one",
                "bad_name",
            )
        entry, where = config.models[model], f"models.{model}"
        folder = f"{config.results}/{trained(model, '{revision}')}"
        given = getattr(entry.source, "folder", None)
        if given is None or PurePath(given) != PurePath(folder):
            problem = f"the workflow trains this model; write {{folder: {folder}}}"
            yield f"{where}.source", problem, "nano_folder"
        for revision in entry.revisions:
            step = re.fullmatch(r"step(0|[1-9]\d*)", revision)
            if step is None or int(step[1]) > nano.train_steps:
                problem = f"expected step0 to step{nano.train_steps}, got {revision!r}"
                yield f"{where}.revisions", problem, "unknown_name"
        if entry.bidirectional:
            problem = "models trained here are causal; remove this key"
            yield f"{where}.bidirectional", problem, "nano_causal"


def _settings_of_metrics(config: Config) -> Problems:
    for name, section in sections().items():
        parse(section, config.metrics.settings.get(name, {}), f"metrics.settings.{name}")
    return
    yield


def _extracted(config: Config) -> Problems:
    """Metrics are computed from what the extraction keeps."""
    kept = {
        f" for {model} on {corpus}": config.extraction(model, corpus)
        for study in config.studies.values()
        if not study.published
        for model in study.models or config.models
        for corpus in _corpora(config, study)
        if corpus in config.corpora
    } or {"": config.extract}
    for name in config.metrics.protocols or ():
        for run, section in kept.items():
            if name not in section.protocols:
                problem = f"{name!r} is not extracted{run}; add it to extract.protocols"
                yield "metrics.protocols", problem, "not_extracted"


def _tasks(config: Config) -> Problems:
    known = {*QUICKSTART, *PAPER}
    for name, task in config.tasks.items():
        if not isinstance(task, MtebTask) and name in known:
            problem = "mteb or the quickstart has a task of this name; rename yours"
            yield f"tasks.{name}", problem, "duplicate"
    texts = {n: c.source.task for n, c in config.corpora.items() if hasattr(c.source, "task")}
    for corpus, name in texts.items():
        entry = config.tasks.get(name)
        if isinstance(entry, ChoiceTask) or (
            isinstance(entry, LabelledTask) and (entry.corpus or entry.kind == "tags")
        ):
            problem = f"the inputs of {name} are no texts; name another task"
            yield f"corpora.{corpus}.source.task", problem, "wrong_kind"
    mteb = {f"tasks.{n}": n for n, task in config.tasks.items() if isinstance(task, MtebTask)}
    mteb |= {f"corpora.{c}.source.task": n for c, n in texts.items() if n not in config.tasks}
    for where, name in mteb.items():
        if name not in known:
            # mteb takes seconds to import; most configs do not need it here.
            from layerwise.tasks.catalog import get_task

            try:
                get_task(name)
            except LayerwiseError as error:
                yield where, str(error).removeprefix("tasks: ").rstrip("."), "unknown_name"


def _prompts(config: Config) -> Problems:
    known = {*QUICKSTART, *PAPER, *TYPES, *config.tasks}
    for model, entry in config.models.items():
        where = f"models.{model}"
        if entry.prompts is None and entry.include_prompt is not None:
            problem = "the model has no prompts; add `prompts` or remove this key"
            yield f"{where}.include_prompt", problem, "no_prompts"
        for name in entry.prompts if isinstance(entry.prompts, dict) else ():
            head, _, tail = name.rpartition("-")
            base = head if tail in PROMPT_TYPES else name
            if name in (*PROMPT_TYPES, DEFAULT) or base in known:
                continue
            from layerwise.tasks.catalog import is_known

            if not is_known(base):
                near = closest(name, [*PROMPT_TYPES, DEFAULT, *known])
                problem = (
                    f"there is no prompt {name!r}{near}; use query, document, default, a task or "
                    "a task type of mteb, or one of these with -query or -document"
                )
                yield f"{where}.prompts", problem, "unknown_name"


def _files(config: Config) -> Problems:
    for name, entry in config.models.items():
        try:
            for revision in entry.revisions if name not in config.nano else ():
                locate(entry.source, revision)
            for adapter in entry.adapters:
                locate(adapter)
        except LayerwiseError as error:
            yield f"models.{name}", str(error).rstrip("."), "no_file"
    for where, path, exists in _paths(config):
        if path is not None and not exists(path):
            kind = "file" if exists is is_file else "folder"
            yield where, f"there is no {kind} {path}", "no_file"


def _paths(config: Config) -> Iterator[tuple[str, str | None, Callable[[str], bool]]]:
    """Every file and folder that the config names, models aside."""
    for name, tables in config.published.items():
        yield f"published.{name}.scores", tables.scores, is_file
        yield f"published.{name}.metrics", tables.metrics, is_file
    for name, corpus in config.corpora.items():
        if isinstance(corpus, ImageCorpus):
            if isinstance(corpus.images, FolderImages):
                yield f"corpora.{name}.images.folder", corpus.images.folder, is_folder
        else:
            yield f"corpora.{name}.source.file", getattr(corpus.source, "file", None), is_file
    for name, task in config.tasks.items():
        if isinstance(task, LabelledTask):
            yield f"tasks.{name}.file", task.file, is_file
        elif isinstance(task, MtebTask):
            yield f"tasks.{name}.folder", task.folder, is_folder
        elif isinstance(task.questions, FileQuestions):
            yield f"tasks.{name}.questions.file", task.questions.file, is_file
            yield f"tasks.{name}.questions.examples", task.questions.examples, is_file


# Studies

# Sections that a table is computed from.
SECTIONS = {
    "metrics": ("corpora",),
    "prompts": ("corpora",),
    "positions": ("corpora",),
    "scores": ("tasks",),
    "probes": ("tasks",),
    "associations": ("corpora", "tasks"),
    "selections": ("corpora", "tasks"),
    "similarities": ("corpora",),
    "texts": ("corpora",),
}


def _studies(config: Config) -> Problems:
    for name, study in config.studies.items():
        where = f"studies.{name}"
        checks = (_y, _published if study.published else _own, _roles)
        try:
            for check in checks:
                for key, problem, code in check(config, study):
                    yield f"{where}.{key}" if key else where, problem, code
        except ConfigError:
            raise
        except LayerwiseError as error:
            yield where, str(error).rstrip("."), "roles"


def _y(_config: Config, study: Study) -> Problems:
    if study.y is not None and study.kind != "curves":
        yield "y", f"{study.kind} has no y; remove it", "unknown_key"


def _published(config: Config, study: Study) -> Problems:
    kind, tables = KINDS[study.kind], set(needs(study))
    lacking = {"prompts", "similarities", "texts"} & set(kind.needs)
    if lacking and not kind.published:
        problem = f"published tables have no {' or '.join(sorted(lacking))}; name `models` instead"
        yield "published", problem, "not_published"
    given = config.published.get(study.published or "")
    if given is not None and given.scores is None and tables & OF_SCORES:
        problem = f"{study.kind} needs scores; add published.{study.published}.scores"
        yield "published", problem, "not_published"


def _own(config: Config, study: Study) -> Problems:
    """Checks of a study of the config's own models, up to the first problem of each step."""
    tables = set(needs(study))
    if not tables:
        return
    needed = ["models", *(s for table in needs(study) for s in SECTIONS[table])]
    for section in needed:
        if not getattr(config, section):
            problem = f"{study.kind} needs {section}, and the config has none; add some"
            yield "", problem, "missing_section"
    yield from _checkpoints(config, study)
    corpora = _corpora(config, study)
    if "texts" in tables:
        for corpus in corpora:
            if isinstance(config.corpora.get(corpus), ImageCorpus):
                problem = f"{study.kind} reads texts, and {corpus} has images; name others"
                yield "corpora", problem, "wrong_kind"
    if OWN_TEXTS in (study.corpora or ()):
        if not {"associations", "selections"} & tables:
            yield "corpora", f"{study.kind} cannot use {OWN_TEXTS!r}; name corpora", "wrong_kind"
        elif not config.own_texts:
            problem = (
                f"no corpus has a task's own texts for {OWN_TEXTS!r}; add a corpus with the "
                "source {task: …}, or association.own_texts"
            )
            yield "corpora", problem, "missing_section"
    if "probes" in tables and not any(
        isinstance(task := config.tasks[name], LabelledTask) and task.kind != "pairs"
        for name in study.tasks or config.tasks
    ):
        problem = "none of the tasks has labels to probe; name a task of your own labels"
        yield "tasks", problem, "wrong_kind"
    yield from _offered_values(config, study)
    yield from _metrics_of(config, study)
    yield from _of_the_kind(config, study)


def _checkpoints(config: Config, study: Study) -> Problems:
    kind, shown = KINDS[study.kind], _revisions(config, study)
    longest = max(map(len, shown.values()))
    if kind.checkpoints and longest < 2:
        problem = f"{study.kind} needs a model with several checkpoints; add models.….revisions"
        yield "", problem, "too_few"
    if sum(map(len, shown.values())) < kind.points:
        problem = f"{study.kind} needs {kind.points} models or checkpoints; name more"
        yield "models", problem, "too_few"


def _offered_values(config: Config, study: Study) -> Problems:
    """The values that a study names are among those extracted, computed or scored."""
    offered, curves = _offered(config, study), study.curves or ()
    asked: dict[str, tuple[Any, ...]] = {"tokens": study.tokens or ()}
    if set(needs(study)) & OF_METRICS:
        asked["sublayers"] = study.sublayers or ()
        for key in ("protocol", "alpha", "normalization"):
            values = (*several(getattr(study, key)), *(getattr(c, key) for c in curves))
            asked[key] = tuple(value for value in values if value is not None)
    if set(needs(study)) & OF_SCORES:
        asked["pooling"] = several(study.pooling)
        asked["task_types"] = study.task_types or ()
    for key, values in asked.items():
        for value in values:
            if offered[key] is not None and value not in offered[key]:
                there = ", ".join(_text(v) for v in offered[key]) or "none"
                near = closest(value, offered[key]) if isinstance(value, str) else ""
                yield key, f"the config has no {_text(value)}{near}, only {there}", "unknown_value"


def _metrics_of(config: Config, study: Study) -> Problems:
    """The metrics of a study can be computed on its corpora."""
    tables, curves = set(needs(study)), study.curves or ()
    wanted = list(dict.fromkeys(curve.metric for curve in curves))
    if not tables & OF_METRICS:
        return
    corpora = [c for c in _corpora(config, study) if c in config.corpora]
    if "positions" in tables:
        computed = list(QUANTITIES)
    else:
        computed = list(config.metrics.metrics or all_metrics())
    for name in wanted:
        if name in computed:
            continue
        hint = closest(name, computed) or f", only {', '.join(computed[:12])}"
        problem = f"the config has no metric {name!r}{hint}"
        if study.metrics is None:
            problem += f"; {study.kind} shows {', '.join(wanted)} unless the study names others"
        yield "metrics", problem, "unknown_name"
    if "prefix_entropy" in wanted and "positions" in tables:
        for corpus in corpora:
            if not config.corpora[corpus].override(config.extract).prefixes:
                problem = f"prefix_entropy needs extract.prefixes or corpora.{corpus}.prefixes"
                yield "metrics", problem, "not_extracted"
        yield from _causal(config, study)
    views = min((config.corpora[c].views.n for c in corpora), default=0)
    for name in wanted or config.metrics.metrics or ():
        metric = all_metrics().get(name)
        if metric is not None and metric.min_views > views:
            problem = (
                f"{name} needs {metric.min_views} views of each prompt, and "
                f"{' and '.join(corpora)} has {views}; raise corpora.….views.n"
            )
            yield "metrics", problem, "too_few_views"


def _causal(config: Config, study: Study) -> Problems:
    """Prefixes need models in which no token attends to later ones."""
    models = study.models or tuple(config.models)
    both = [model for model in models if _is_bidirectional(config, model)]
    # Those of "all models" that have no prefixes are left out of the figure.
    if both and (study.models is not None or len(both) == len(models)):
        problem = (
            f"tokens of {' and '.join(both)} attend to later ones, so their prefixes have no "
            "entropy of their own; name causal models"
        )
        yield "models", problem, "not_causal"


def _is_bidirectional(config: Config, model: str) -> bool:
    """True if the entry says so, or a local configuration is of an encoder."""
    entry = config.models[model]
    if entry.bidirectional:
        return True
    if model in config.nano:
        return False
    folder = locate(entry.source, entry.revisions[-1]).folder
    file = folder / "config.json" if folder else None
    if file is None or not file.is_file():
        return False
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = found.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return masked and not found.get("is_decoder", False)


def _of_the_kind(config: Config, study: Study) -> Problems:
    """Requirements of single kinds."""
    kind, curves = KINDS[study.kind], study.curves or ()
    if study.kind == "size_scaling":
        for model in study.models or config.models:
            if model not in (study.sizes or {}) and size_of(model) is None:
                problem = f"the name {model!r} has no number of parameters; add it here"
                yield "sizes", problem, "missing"
    if study.kind == "sublayers" and len(_offered(config, study)["sublayers"]) < 2:
        yield "", "sublayers needs extract.sublayers; name some there", "not_extracted"
    if study.kind in TOKEN_KINDS:
        tokens = study.tokens or _offered(config, study)["tokens"]
        if "all" not in tokens or len(tokens) < 2:
            problem = f"{study.kind} compares all tokens with another selection; add both"
            yield "tokens" if study.tokens else "", problem + " to extract.tokens", "too_few"
    if "y" in kind.one and len(curves) > 1:
        yield "metrics", f"{study.kind} shows one metric; name one", "too_many"
    if not {"associations", "selections"} & set(kind.needs):
        return
    names = [curve.metric for curve in curves]
    if "scores" not in kind.needs and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield "metrics", f"{study.kind} shows {twice} in one variant; name one", "too_many"
    if "associations" in kind.needs and len(study.task_types or ()) > 1:
        yield "task_types", f"{study.kind} takes one task type or all; name one", "too_many"
    if study.kind == "association_strength" and study.measure == "all":
        yield "measure", "association_strength draws one measure; name one", "too_many"
    if study.over == "tasks" and OWN_TEXTS not in (study.corpora or ()):
        problem = f"over: tasks needs a metric on each task's texts; add {OWN_TEXTS!r}"
        yield "corpora", problem, "missing"


def _roles(config: Config, study: Study) -> Problems:
    """Every dimension with several values has a role: a figure averages over none unseen."""
    if not needs(study):
        return
    labels = {} if study.published else config.labels()
    known = [*DIMENSIONS, *dict.fromkeys(d for given in labels.values() for d in given)]
    for role, dimensions in study.roles.items():
        for name in dimensions:
            if name not in known:
                hint = closest(name, known) or f"; there are {', '.join(known)}"
                yield role, f"there is no dimension {name!r}{hint}", "unknown_value"
    counts = _shown(config, study)
    roles = roles_of(study, several="revision" in counts)
    placed = {d for dimensions in roles.values() for d in dimensions}
    if "sublayer" not in placed and not study.sublayers:
        counts.pop("sublayer", None)
    if study.kind in READING_KINDS:
        counts.pop("tokens", None)
    counts |= _perturbations(counts.get("corpus", ()), labels, placed)
    for dimension in without_role({d: len(v) for d, v in counts.items()}, roles):
        raise refuse(study, dimension, ", ".join(map(_text, counts[dimension])))


def _shown(config: Config, study: Study) -> dict[str, tuple[Any, ...]]:
    """The values that a study shows, by dimension."""
    tables, curves = set(needs(study)), study.curves or ()
    counts: dict[str, tuple[Any, ...]] = {"tokens": study.tokens or ()}
    if study.published:
        if len(several(study.revisions)) > 1:
            counts["revision"] = several(study.revisions)
        corpora = study.corpora or ()
        sublayers = study.sublayers or ()
    else:
        offered, kind = _offered(config, study), KINDS[study.kind]
        shown = _revisions(config, study)
        counts["model"] = tuple(m for m, r in shown.items() if len(r) > 1 or not kind.checkpoints)
        counts["tokens"] = study.tokens or offered["tokens"]
        longest = max(shown.values(), key=len)
        if len(longest) > 1:
            counts["revision"] = longest
        corpora = study.corpora or tuple(config.corpora)
        sublayers = study.sublayers or offered["sublayers"]
    if tables & OF_METRICS:
        counts["corpus"] = corpora
        counts["sublayer"] = sublayers
        counts["y"] = tuple(dict.fromkeys(curve.metric for curve in curves))
        for key in ("protocol", "alpha", "normalization"):
            # Variants that a metric names itself are metrics of their own.
            counts[key] = tuple(dict.fromkeys(several(getattr(study, key))))
    if tables & OF_SCORES:
        counts["pooling"] = several(study.pooling)
    return counts


def _perturbations(
    corpora: Iterable[str], labels: Mapping[str, Mapping[str, float]], placed: set[str]
) -> dict[str, tuple[Any, ...]]:
    """The values of each perturbation, and the corpora that differ in none with a role."""
    given = {corpus: labels.get(corpus, {}) for corpus in corpora}
    dimensions = list(dict.fromkeys(d for own in given.values() for d in own))
    found = {d: tuple(dict.fromkeys(o.get(d, "") for o in given.values())) for d in dimensions}
    alike: dict[tuple[Any, ...], tuple[str, ...]] = {(): ()}
    for corpus, own in given.items():
        key = tuple(own.get(d, "") for d in dimensions if d in placed)
        alike[key] = (*alike.get(key, ()), corpus)
    return {**found, "corpus": max(alike.values(), key=len)}


def _offered(config: Config, study: Study) -> dict[str, Any]:
    """The values that the config has for a study, by its key; None if unknown."""
    models = study.models or tuple(config.models)
    corpora = [c for c in _corpora(config, study) if c in config.corpora]
    runs = [config.extraction(m, c) for m in models for c in corpora or (None,)]
    sections: list[ExtractSettings] = [
        config.corpora[c].override(config.extract) for c in corpora
    ] or [config.extract]
    protocols = [p for p in runs[0].protocols if all(p in run.protocols for run in runs)]
    tasks = [config.tasks[task] for task in study.tasks or config.tasks]
    types: set[str | None] = set()
    for name, task in zip(study.tasks or config.tasks, tasks, strict=True):
        if isinstance(task, LabelledTask):
            types.add(TASK_TYPES[task.kind])
        else:
            types.add(MULTIPLE_CHOICE if isinstance(task, ChoiceTask) else QUICKSTART.get(name))
    return {
        "tokens": _union(run.tokens for run in runs),
        "sublayers": ("block", *_union(section.sublayers for section in sections)),
        "protocol": config.metrics.protocols or protocols,
        "alpha": config.metrics.alphas,
        "normalization": ("raw", *config.metrics.normalizations),
        "pooling": _poolings(config, study, models),
        "task_types": None if None in types else sorted(map(str, types)),
    }


def _poolings(config: Config, study: Study, models: Iterable[str]) -> tuple[str, ...]:
    """The poolings of a study's scores, with the readout where several are scored."""
    found: dict[tuple[str, str], None] = {}
    for model in models:
        scoring = config.scoring_of(model)
        for name in study.tasks or config.tasks:
            task = config.tasks[name]
            choice = isinstance(task, ChoiceTask)
            poolings = task.forms if isinstance(task, ChoiceTask) else scoring.poolings
            readouts = ("final_norm",) if choice else scoring.readouts
            found |= dict.fromkeys((p, r) for p in poolings for r in readouts)
    alone = len({readout for _, readout in found}) < 2
    return tuple(dict.fromkeys(p if alone or r == "final_norm" else f"{p}, {r}" for p, r in found))


def _corpora(config: Config, study: Study) -> tuple[str, ...]:
    return corpora_of(study, list(config.corpora), config.own_texts)


def _revisions(config: Config, study: Study) -> dict[str, tuple[str, ...]]:
    models = study.models or tuple(config.models)
    return {model: revisions_of(study, config.models[model].revisions) for model in models}


def _union(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


CHECKS: tuple[Callable[[Config], Problems], ...] = (
    _results,
    _names,
    _references,
    _settings_of_metrics,
    _nano,
    _extracted,
    _tasks,
    _prompts,
    _studies,
    _files,
)
