"""Checks of a config that need more than one section, or this machine, before any job runs.

Each check is a generator of problems ``(where, problem, code)``. `validate` raises the first.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.config.images import FolderImages, ImageCorpus
from layerwise.config.kinds import needs
from layerwise.config.reading import read_yaml
from layerwise.config.studies import several
from layerwise.config.tasks import ChoiceTask, FileQuestions, LabelledTask, MtebTask
from layerwise.errors import ConfigError, LayerwiseError, closest
from layerwise.io.files import is_file, is_folder
from layerwise.metrics.registry import all_metrics, sections
from layerwise.models.source import locate
from layerwise.names import RESERVED, encode
from layerwise.section import parse
from layerwise.tasks import catalog
from layerwise.tasks.names import DEFAULT, PAPER, PROMPT_TYPES, QUICKSTART, TYPES
from layerwise.workflow import studies
from layerwise.workflow.validate_studies import WITH_CORPORA, Problems, problems

log = logging.getLogger(__name__)

# Characters of a path that Snakemake reads as a pattern, or a shell as more than text.
UNSAFE = re.compile(r"[{}\x00-\x1f\x7f]|^[~-]|^\s|\s$|//")
LONGEST_PART = 100


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


def log_unused(config: Config) -> None:
    """Log models, corpora and tasks that no study uses."""
    used: dict[str, set[str]] = {"models": set(), "corpora": set(), "tasks": set()}
    used["corpora"] |= {t.corpus for t in _labelled(config).values() if t.corpus is not None}
    for name, study in config.studies.items():
        tables = set(needs(study))
        used["models"] |= {model for model, _ in studies.points(config, name)}
        if not study.published and tables & (WITH_CORPORA | {"texts"}):
            used["corpora"] |= set(studies.corpora(config, name))
        if not study.published and tables & studies.OF_SCORES:
            used["tasks"] |= set(studies.tasks(config, name))
    for section, names in used.items():
        rest = [name for name in getattr(config, section) if name not in names]
        if rest:
            log.warning("No study uses these %s: %s.", section, ", ".join(rest))


# Names and paths


def _results(config: Config) -> Problems:
    parts = PurePath(config.results).parts
    too_long = len(parts) > 30 or any(len(part.encode()) > LONGEST_PART for part in parts)
    if too_long or UNSAFE.search(config.results) or parts in ((), ("/",), (".",)) or ".." in parts:
        yield (
            "results",
            f"{config.results!r} cannot be the results folder; name one without '..', braces, "
            f"line breaks, a leading '~' or '-', or parts of over {LONGEST_PART} characters",
            "bad_name",
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
        if corpus.endswith(RESERVED):
            yield f"corpora.{corpus}", "other files have this ending; rename it", "bad_name"


# Names that one section takes from another


def _references(config: Config) -> Problems:
    for where, names, known in _named(config):
        yield from _unknown(where, names, known)


def _unknown(where: str, names: Iterable[Any], known: Iterable[Any]) -> Problems:
    for name in names:
        if name not in known:
            there = ", ".join(sorted(map(str, known))[:12]) or "none"
            hint = closest(str(name), map(str, known)) or f"; choose from {there}"
            yield where, f"unknown name {name!r}{hint}", "unknown_name"


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
            named = [m for m in study.models or models if m in models]
            known = [revision for model in named for revision in models[model].revisions]
            yield f"{where}.revisions", study.revisions, known
            for model in named:
                if not set(study.revisions) & set(models[model].revisions):
                    yield f"{where}.revisions", study.revisions, models[model].revisions
    yield "association.directions", config.association.directions, metrics


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
        folder = f"{config.results}/nano/{encode(model)}/{{revision}}"
        given = getattr(entry.source, "folder", None)
        if given is None or PurePath(given) != PurePath(folder):
            problem = f"the workflow trains this model; write {{folder: {folder}}}"
            yield f"{where}.source", problem, "conflict"
        for revision in entry.revisions:
            step = re.fullmatch(r"step(0|[1-9]\d*)", revision)
            if step is None or int(step[1]) > nano.train_steps:
                problem = f"expected step0 to step{nano.train_steps}, got {revision!r}"
                yield f"{where}.revisions", problem, "unknown_name"
        if entry.bidirectional:
            problem = "models trained here are causal; remove this key"
            yield f"{where}.bidirectional", problem, "unsupported"


def _settings_of_metrics(config: Config) -> Problems:
    for name, section in sections().items():
        parse(section, config.metrics.settings.get(name, {}), f"metrics.settings.{name}")
    return
    yield


def _extracted(config: Config) -> Problems:
    """Metrics are computed from what the extraction keeps."""
    kept = {
        f" for {model} on {corpus}": config.extraction(model, corpus)
        for name, study in config.studies.items()
        if not study.published
        for model in studies.models(config, name)
        for corpus in studies.corpora(config, name)
    } or {"": config.extract}
    for protocol in config.metrics.protocols or ():
        for run, section in kept.items():
            if protocol not in section.protocols:
                problem = f"{protocol!r} is not extracted{run}; add it to extract.protocols"
                yield "metrics.protocols", problem, "missing"


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
            yield f"corpora.{corpus}.source.task", problem, "mismatch"
    mteb = {f"tasks.{n}": n for n, task in config.tasks.items() if isinstance(task, MtebTask)}
    mteb |= {f"corpora.{c}.source.task": n for c, n in texts.items() if n not in config.tasks}
    for where, name in mteb.items():
        if name not in known:
            try:
                catalog.get_task(name)
            except LayerwiseError as error:
                yield where, str(error).removeprefix("tasks: ").rstrip("."), "unknown_name"


def _prompts(config: Config) -> Problems:
    known = {*QUICKSTART, *PAPER, *TYPES, *config.tasks}
    for model, entry in config.models.items():
        where = f"models.{model}"
        if entry.prompts is None and entry.include_prompt is not None:
            problem = "the model has no prompts; add `prompts` or remove this key"
            yield f"{where}.include_prompt", problem, "missing"
        for name in entry.prompts if isinstance(entry.prompts, dict) else ():
            head, _, tail = name.rpartition("-")
            base = head if tail in PROMPT_TYPES else name
            if name in (*PROMPT_TYPES, DEFAULT) or base in known:
                continue
            if not catalog.is_known(base):
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
            yield f"models.{name}", str(error).rstrip("."), "missing_file"
    for where, path, exists in _paths(config):
        if path is not None and not exists(path):
            kind = "file" if exists is is_file else "folder"
            yield where, f"there is no {kind} {path}", "missing_file"


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


def _association(config: Config) -> Problems:
    """Corpora and tasks of the config, or of the published tables."""
    texts, sources = config.association.own_texts, config.association.text_sources
    corpora, tasks = [*config.corpora], [*config.tasks, *QUICKSTART, *PAPER]
    if {*texts} - {*corpora} or {*texts.values(), *sources} - {*tasks}:
        # pandas takes a second to import; most configs do not need it here.
        from layerwise.association.published import names_in

        for entry in config.published.values():
            corpora += names_in(Path(entry.metrics), "corpus", "dataset")
            tasks += names_in(Path(entry.scores), "task") if entry.scores else []
    yield from _unknown("association.own_texts", texts, corpora)
    yield from _unknown("association.own_texts", texts.values(), tasks)
    yield from _unknown("association.text_sources", sources, tasks)


def _studies(config: Config) -> Problems:
    for name in config.studies:
        where = f"studies.{name}"
        try:
            for key, problem, code in problems(config, name):
                yield f"{where}.{key}" if key else where, problem, code
        except ConfigError:
            raise
        except LayerwiseError as error:
            yield where, str(error).rstrip("."), error.code


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
    _association,
)
