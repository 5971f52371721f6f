"""What one section of the config asks of another, checked before any job runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from layerwise.config import Config
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.kinds import KINDS
from layerwise.paths import encode

# In the results folder's path these would be read as patterns, or by a shell.
UNFIT = re.compile(r"[{}\x00-\x1f\x7f]|^~|^\s|\s$|//")


def check(config: Config) -> None:
    """Make sure that a config's sections fit together.

    Raises
    ------
    LayerwiseError
        Naming the key, what came, and what is accepted.
    """
    _results(config)
    _names(config)
    for where, name, known in _references(config):
        if name not in known:
            raise LayerwiseError(
                f"{where}: there is no {name!r} in the config{closest(name, known)}; "
                f"there are {', '.join(sorted(known)) or 'none'}."
            )
    _extracted(config)
    for study in config.studies:
        _study(config, study)


def _results(config: Config) -> None:
    parts = PurePath(config.results).parts
    if UNFIT.search(config.results) or not parts or parts in (("/",), (".",)) or ".." in parts:
        raise LayerwiseError(
            f"results: {config.results!r} came; accepted is the path of a folder of its own, "
            "without '~', '..', braces, line breaks or spaces at its ends."
        )


def _names(config: Config) -> None:
    """Make sure that every name can be a part of a path, and that no two are one there."""
    sections: dict[str, Iterable[str]] = {
        name: getattr(config, name)
        for name in ("models", "corpora", "tasks", "published", "studies")
    }
    sections |= {f"models.{m}.revisions": entry.revisions for m, entry in config.models.items()}
    for where, names in sections.items():
        seen: dict[str, str] = {}
        for name in names:
            # Many file systems don't tell capitals from small letters.
            folded = encode(name).casefold()
            if folded in seen:
                raise LayerwiseError(
                    f"{where}: {seen[folded]!r} and {name!r} differ by capitals alone, which many "
                    "file systems don't tell apart; rename one."
                )
            seen[folded] = name
    for corpus in config.corpora:
        if corpus.endswith((".views", ".prompts")):
            raise LayerwiseError(
                f"corpora: {corpus!r} cannot be a name, since files of its own end so; rename it."
            )
    rules: dict[str, str] = {}
    for model in config.nano:
        rule = re.sub(r"\W", "_", model)
        if rule in rules:
            raise LayerwiseError(
                f"nano: {rules[rule]!r} and {model!r} differ by punctuation alone, and their rules "
                "would have one name; rename one."
            )
        rules[rule] = model


def _references(config: Config) -> Iterator[tuple[str, str, list[str]]]:
    models = list(config.models)
    for study, entry in config.studies.items():
        if entry.published:
            yield f"studies.{study}.published", entry.published, list(config.published)
            continue
        for key, known in (
            ("models", models), ("corpora", list(config.corpora)), ("tasks", list(config.tasks)),
        ):  # fmt: skip
            for name in getattr(entry, key) or ():
                yield f"studies.{study}.{key}", name, known
        if isinstance(entry.revisions, tuple):
            for model in entry.models or models:
                there = list(config.models[model].revisions) if model in models else []
                for revision in entry.revisions:
                    yield f"studies.{study}.revisions (model {model})", revision, there
    for name in config.nano:
        yield "nano", name, models
    for name in config.task_folders:
        yield "task_folders", name, [*config.tasks, *_tasks_of_corpora(config)]


def _tasks_of_corpora(config: Config) -> list[str]:
    return [c.source.task for c in config.corpora.values() if hasattr(c.source, "task")]


def _extracted(config: Config) -> None:
    """Metrics are computed of what the extraction keeps."""
    for key in ("protocols", "tokens", "sublayers"):
        kept = getattr(config.extract, key)
        for name in getattr(config.metrics, key) or ():
            if name not in kept:
                raise LayerwiseError(
                    f"metrics.{key}: {name!r} came, which extract.{key} does not keep; it keeps "
                    f"{', '.join(kept) or 'none'}: add it there, or leave metrics.{key} out to "
                    "follow it."
                )


def _study(config: Config, name: str) -> None:
    entry = config.studies[name]
    needs = KINDS[entry.kind].needs
    if not entry.published:
        sections = {"metrics": "corpora", "prompts": "corpora", "scores": "tasks"}
        sections |= {"associations": "tasks", "choices": "tasks"}
        wanted = ["models", *(sections[n] for n in needs)] if needs else []
        if {"associations", "choices"} & set(needs):
            wanted.append("corpora")
        for key in wanted:
            if not getattr(config, key):
                raise LayerwiseError(
                    f"studies.{name}: a study of kind {entry.kind!r} needs {key!r}, and that is "
                    "missing or empty in the config."
                )
