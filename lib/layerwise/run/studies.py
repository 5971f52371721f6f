"""What the studies of a config read: models, checkpoints, corpora, tasks and the files of each.

Names are those of the config.
"""

from __future__ import annotations

from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.config.tasks import MtebEntry
from layerwise.names import PATHS, encode, path_of
from layerwise.tasks.names import QUICKSTART

OF_STUDY = ("associations", "selections", "similarities")
"""Tables that are made for one study."""
OF_RESULTS = {"associations", "selections"}
"""Tables made of metrics and scores."""
OF_METRICS = {"metrics", "prompts", "positions"} | OF_RESULTS
"""Tables that come from the metrics of a corpus."""
OF_SCORES = {"scores"} | OF_RESULTS
"""Tables that come from scores."""


def needs(config: Config, study: str) -> tuple[str, ...]:
    """The tables that a study reads."""
    return config.studies[study].reads


def models(config: Config, study: str) -> tuple[str, ...]:
    """The models of a study."""
    return config.studies[study].models or tuple(config.models)


def revisions(config: Config, study: str, model: str) -> tuple[str, ...]:
    """The checkpoints of a model that a study shows, in the config's order."""
    checkpoints, chosen = config.models[model].revisions, config.studies[study]
    wanted = chosen.revisions or chosen.declaration.revisions
    if wanted == "last":
        return checkpoints[-1:]
    return tuple(r for r in checkpoints if wanted == "all" or r in wanted)


def points(config: Config, study: str) -> list[tuple[str, str]]:
    """The (model, revision) pairs that a study reads; none of published tables."""
    if config.studies[study].published or not needs(config, study):
        return []
    return [(m, r) for m in models(config, study) for r in revisions(config, study, m)]


def corpora(config: Config, study: str) -> tuple[str, ...]:
    """The corpora of a study."""
    names = config.studies[study].corpora or tuple(config.corpora)
    parts = [tuple(config.own_texts) if name == OWN_TEXTS else (name,) for name in names]
    return tuple(dict.fromkeys(name for part in parts for name in part))


def tasks(config: Config, study: str) -> tuple[str, ...]:
    """The tasks of a study."""
    named = config.studies[study].tasks or tuple(config.tasks)
    if not config.studies[study].declaration.probes:
        return named
    kinds = {name: getattr(entry, "kind", "pairs") for name, entry in config.tasks.items()}
    return tuple(task for task in named if kinds[task] != "pairs")


def scored(config: Config) -> list[tuple[str, str]]:
    """The (model, revision) pairs whose scores some study reads."""
    reading = [study for study in config.studies if _reads_scores(config, study)]
    return list(dict.fromkeys(p for study in reading for p in points(config, study)))


def measured(config: Config) -> list[tuple[str, str, str]]:
    """The (model, revision, corpus) triples whose metrics some study reads."""
    found = (
        (m, r, c)
        for s in config.studies
        if OF_METRICS & set(needs(config, s))
        for m, r in points(config, s)
        for c in corpora(config, s)
    )
    return list(dict.fromkeys(found))


def tasks_scored(config: Config, model: str, revision: str) -> list[str]:
    """The tasks that a model is scored on at a checkpoint: those that studies read, or all."""
    found = (
        task
        for study in config.studies
        if _reads_scores(config, study) and (model, revision) in points(config, study)
        for task in tasks(config, study)
    )
    return list(dict.fromkeys(found)) or list(config.tasks)


def _reads_scores(config: Config, study: str) -> bool:
    return bool(OF_SCORES & set(needs(config, study)))


def swept(config: Config) -> list[tuple[str, str]]:
    """The (model, revision) pairs of models that are read at several checkpoints."""
    read = list(dict.fromkeys([*(p[:2] for p in measured(config)), *scored(config)]))
    counts = {m: sum(model == m for model, _ in read) for m, _ in read}
    return [(m, r) for m, r in read if counts[m] > 1]


def swept_tables(config: Config) -> list[str]:
    """One table made from each checkpoint of `swept`, which holds the hash of its weights."""
    corpora = {(m, r): c for m, r, c in measured(config)}
    return [
        path(config, "metrics", model=m, revision=r, corpus=corpora[m, r])
        if (m, r) in corpora
        else path(config, "scores", model=m, revision=r)
        for m, r in swept(config)
    ]


def quickstart_folder(config: Config, task: str) -> str | None:
    """The folder of a task that the workflow makes; None for any other task."""
    entry = config.tasks.get(task)
    if task not in QUICKSTART or entry not in (None, MtebEntry()):
        return None
    return f"{config.results}/tasks/{encode(task)}"


def task_files(config: Config, task: str) -> list[str]:
    """The user's own files that a task is read from."""
    entry = config.tasks.get(task)
    source = getattr(entry, "questions", entry)
    if not getattr(source, "file", None):
        return []
    return [file for key in ("file", "examples") if (file := getattr(source, key, None))]


def task_inputs(config: Config, task: str) -> list[str]:
    """All files that a task is read from: the user's own, and those that the workflow makes."""
    entry, made = config.tasks.get(task), []
    if quickstart_folder(config, task):
        made.append(f"{config.results}/tasks/layerwise.json")
    if corpus := getattr(entry, "corpus", None):
        made.append(path(config, "texts", corpus=corpus))
    return [*task_files(config, task), *made]


# Paths


def path(config: Config, table: str, **names: str) -> str:
    """The path of a file of `layerwise.names.PATHS`."""
    return f"{config.results}/{path_of(table, **names)}"


def score_paths(config: Config) -> list[str]:
    """The tables of scores that studies read."""
    return [path(config, "scores", model=m, revision=r) for m, r in scored(config)]


def table_paths(config: Config, study: str, table: str) -> list[str]:
    """The files of one table that a study reads, or of its activations."""
    name = config.studies[study].published
    if name and table in ("metrics", "scores"):
        return [f"{config.results}/published/{encode(name)}.{table}.parquet"]
    models_, corpora_ = [dict[str, str]()], [dict[str, str]()]
    if "{model}" in PATHS[table]:
        models_ = [{"model": model, "revision": r} for model, r in points(config, study)]
    if "{corpus}" in PATHS[table]:
        corpora_ = [{"corpus": corpus} for corpus in corpora(config, study)]
    return [path(config, table, study=study, **m, **c) for m in models_ for c in corpora_]


def explored(config: Config) -> dict[str, dict[str, list[str]]]:
    """The tables that the explorer shows: by published name (empty for own models) and table."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, study in config.studies.items():
        origin = found.setdefault(study.published or "", {})
        wanted = set(needs(config, name))
        if OF_RESULTS & wanted:
            wanted |= {"metrics", "scores"}
        for table in ("metrics", "scores", "associations", "selections"):
            if table in wanted:
                paths = [*origin.get(table, ()), *table_paths(config, name, table)]
                origin[table] = list(dict.fromkeys(paths))
    return found
