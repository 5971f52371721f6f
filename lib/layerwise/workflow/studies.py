"""What the studies of a config read: models, checkpoints, corpora, tasks and the files of each.

Names are those of the config. Paths are those of the rules in ``workflow/rules``.
"""

from __future__ import annotations

from layerwise.config import Config
from layerwise.config.kinds import needs as needs_of
from layerwise.config.studies import corpora_of, revisions_of
from layerwise.config.tasks import ChoiceTask, LabelledTask, PackageQuestions
from layerwise.names import encode
from layerwise.tasks.names import QUICKSTART

OF_STUDY = ("associations", "selections", "similarities")
"""Tables that are made for one study."""
OF_TASKS = ("scores", "probes")
"""Tables that come from scoring tasks."""
OF_METRICS = {
    "metrics": "{corpus}.parquet",
    "prompts": "{corpus}.prompts.parquet",
    "positions": "{corpus}.positions.parquet",
}
"""Tables that come from the metrics of a corpus, by the end of their path."""


def needs(config: Config, study: str) -> tuple[str, ...]:
    """The tables that a study reads."""
    return needs_of(config.studies[study])


def models(config: Config, study: str) -> tuple[str, ...]:
    """The models of a study."""
    return config.studies[study].models or tuple(config.models)


def revisions(config: Config, study: str, model: str) -> tuple[str, ...]:
    """The checkpoints of a model that a study shows, in the config's order."""
    return revisions_of(config.studies[study], config.models[model].revisions)


def points(config: Config, study: str) -> list[tuple[str, str]]:
    """The (model, revision) pairs that a study reads; none of published tables."""
    if config.studies[study].published or not needs(config, study):
        return []
    return [(m, r) for m in models(config, study) for r in revisions(config, study, m)]


def corpora(config: Config, study: str) -> tuple[str, ...]:
    """The corpora of a study."""
    return corpora_of(config.studies[study], list(config.corpora), config.own_texts)


def tasks(config: Config, study: str) -> tuple[str, ...]:
    """The tasks of a study."""
    named = config.studies[study].tasks or tuple(config.tasks)
    if "probes" not in needs(config, study):
        return named
    labelled = {
        name
        for name, entry in config.tasks.items()
        if isinstance(entry, LabelledTask) and entry.kind != "pairs"
    }
    return tuple(task for task in named if task in labelled)


def scored(config: Config) -> list[tuple[str, str]]:
    """The (model, revision) pairs whose scores some study reads."""
    return list(
        dict.fromkeys(
            p for s in config.studies if _reads_scores(config, s) for p in points(config, s)
        )
    )


def measured(config: Config) -> list[tuple[str, str, str]]:
    """The (model, revision, corpus) triples whose metrics some study reads."""
    tables = {*OF_METRICS, "associations", "selections"}
    found = (
        (m, r, c)
        for s in config.studies
        if tables & set(needs(config, s))
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
    return bool({*OF_TASKS, "associations", "selections"} & set(needs(config, study)))


def published(config: Config) -> list[str]:
    """The published tables that studies read."""
    named = (study.published for study in config.studies.values() if study.published)
    return list(dict.fromkeys(named))


def swept(config: Config) -> list[tuple[str, str]]:
    """The (model, revision) pairs of models that are read at several checkpoints."""
    read = list(dict.fromkeys([*(p[:2] for p in measured(config)), *scored(config)]))
    counts = {m: sum(model == m for model, _ in read) for m, _ in read}
    return [(m, r) for m, r in read if counts[m] > 1]


def swept_tables(config: Config) -> list[str]:
    """One table made from each checkpoint of `swept`, which holds the hash of its weights."""
    corpora = {(m, r): c for m, r, c in measured(config)}
    return [
        metrics_path(config, m, r, corpora[m, r], "metrics")
        if (m, r) in corpora
        else task_table_path(config, m, r)
        for m, r in swept(config)
    ]


def quickstart_folder(config: Config, task: str) -> str | None:
    """The folder of a task that the workflow makes; None for any other task."""
    entry = config.tasks.get(task)
    if task not in QUICKSTART or isinstance(entry, LabelledTask | ChoiceTask):
        return None
    return None if getattr(entry, "folder", None) else f"{config.results}/tasks/{encode(task)}"


def task_files(config: Config, task: str) -> list[str]:
    """The user's own files that a task is read from."""
    entry = config.tasks.get(task)
    if isinstance(entry, LabelledTask):
        return [entry.file] if entry.file else []
    if isinstance(entry, ChoiceTask):
        named = [getattr(entry.questions, key, None) for key in ("file", "examples")]
        return [str(file) for file in named if file] if hasattr(entry.questions, "file") else []
    return []


def task_inputs(config: Config, task: str) -> list[str]:
    """All files that a task is read from: the user's own, and those that the workflow makes."""
    entry = config.tasks.get(task)
    made = []
    if quickstart_folder(config, task):
        made.append(f"{config.results}/tasks/layerwise.json")
    if isinstance(entry, LabelledTask) and entry.corpus:
        made.append(f"{config.results}/corpora/{encode(entry.corpus)}.parquet")
    if isinstance(entry, ChoiceTask) and isinstance(entry.questions, PackageQuestions):
        made.append(f"{config.results}/texts/wikipedia.parquet")
    return [*task_files(config, task), *made]


# Paths


def metrics_path(config: Config, model: str, revision: str, corpus: str, table: str) -> str:
    """The path of a table of metrics."""
    end = OF_METRICS[table].format(corpus=encode(corpus))
    return f"{config.results}/metrics/{encode(model)}/{encode(revision)}/{end}"


def task_table_path(config: Config, model: str, revision: str, table: str = "scores") -> str:
    """The path of a table of scores or probes."""
    return f"{config.results}/{table}/{encode(model)}/{encode(revision)}.parquet"


def activations_path(config: Config, model: str, revision: str, corpus: str) -> str:
    """The path of an HDF5 file of activations."""
    folder = f"{config.results}/activations/{encode(model)}/{encode(revision)}"
    return f"{folder}/{encode(corpus)}.h5"


def table_paths(config: Config, study: str, table: str) -> list[str]:
    """The files of one table that a study reads."""
    if table in OF_STUDY:
        return [f"{config.results}/{table}/{encode(study)}.parquet"]
    if table == "texts":
        return [f"{config.results}/corpora/{encode(c)}.parquet" for c in corpora(config, study)]
    name = config.studies[study].published
    if name and table not in ("metrics", "scores"):
        return []
    if name:
        return [f"{config.results}/published/{encode(name)}.{table}.parquet"]
    if table in OF_TASKS:
        return [task_table_path(config, m, r, table) for m, r in points(config, study)]
    return [
        metrics_path(config, m, r, c, table)
        for m, r in points(config, study)
        for c in corpora(config, study)
    ]


def paths(config: Config, study: str) -> dict[str, list[str]]:
    """All files that a study reads, by table."""
    return {table: table_paths(config, study, table) for table in needs(config, study)}


def explored(config: Config) -> dict[str, dict[str, list[str]]]:
    """The tables that the explorer shows: by published name (empty for own models) and table."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for study in config.studies:
        origin = found.setdefault(config.studies[study].published or "", {})
        wanted = dict.fromkeys(needs(config, study))
        if {"associations", "selections"} & wanted.keys():
            wanted |= dict.fromkeys(("metrics", "scores"))
        for table in ("metrics", "scores", "associations", "selections"):
            if table in wanted:
                origin.setdefault(table, {}).update(
                    dict.fromkeys(table_paths(config, study, table))
                )
    return {o: {t: list(paths) for t, paths in tables.items()} for o, tables in found.items()}
