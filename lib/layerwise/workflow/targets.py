"""What the studies of a config want: which models, checkpoints, tables.

Names are as in the config.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerwise.config import Config, kinds
from layerwise.config.checks import own_texts_of
from layerwise.config.studies import corpora_of, revisions_of
from layerwise.config.token_tasks import HubQuestions, PairTask
from layerwise.tasks.names import QUICKSTART


class Job(NamedTuple):
    """One run of a stage: the stage's name, and the names of what it is about."""

    stage: str
    names: tuple[str, ...] = ()


OF_METRICS = ("metrics", "prompts", "positions", "associations", "selections")
OF_SCORES = ("scores", "associations", "selections")
# Tables that are made for a study, and by which stage.
OF_STUDY = {
    "associations": "associate_metrics", "selections": "compare_choices",
    "similarities": "compare_layers",
}  # fmt: skip


def needs(config: Config, study: str) -> tuple[str, ...]:
    """The tables that a study draws on."""
    return kinds.needs(config.studies[study])


def models(config: Config, study: str) -> tuple[str, ...]:
    """The models of a study."""
    return config.studies[study].models or tuple(config.models)


def corpora(config: Config, study: str) -> tuple[str, ...]:
    """The corpora of a study."""
    return corpora_of(config.studies[study], list(config.corpora), own_texts_of(config))


def tasks(config: Config, study: str) -> tuple[str, ...]:
    """The tasks of a study."""
    named = config.studies[study].tasks or tuple(config.tasks)
    tables = needs(config, study)
    if "paired" in tables:
        return tuple(task for task in named if task in config.token_tasks)
    if "probes" in tables:
        own = config.own_tasks
        return tuple(task for task in named if task in own and own[task].kind != "pairs")
    return named


def revisions(config: Config, study: str, model: str) -> tuple[str, ...]:
    """The checkpoints of a model that a study shows, in the config's order."""
    return revisions_of(config.studies[study], config.models[model].revisions)


def points(config: Config, study: str) -> list[tuple[str, str]]:
    """The (model, revision) pairs of a study of the config's own models."""
    if config.studies[study].published or not needs(config, study):
        return []
    return [(m, r) for m in models(config, study) for r in revisions(config, study, m)]


def made_from(config: Config, study: str, table: str) -> list[Job]:
    """The jobs that make the tables of a kind (metrics, scores, …) that a study draws on."""
    published = config.studies[study].published
    if table in OF_STUDY:
        return [Job(OF_STUDY[table], (study,))]
    if table == "texts":
        return [Job("make_corpus", (c,)) for c in corpora(config, study)]
    if published:
        return [Job("import_published", (published,))]
    if table == "surprisals":
        return [
            Job("measure_surprisal", (m, r, c)) for m, r in points(config, study)
            for c in corpora(config, study)
        ]  # fmt: skip
    if table in ("scores", "paired", "probes"):
        return [
            Job(scored_by(config, t), (m, r, t))
            for m, r in points(config, study) for t in tasks(config, study)
        ]  # fmt: skip
    return [
        Job("compute_metrics", (m, r, c)) for m, r in points(config, study)
        for c in corpora(config, study)
    ]  # fmt: skip


def scored_by(config: Config, task: str) -> str:
    """The stage that scores a task."""
    if task in config.token_tasks:
        return "score_tokens"
    return "score_labels" if task in config.own_tasks else "score_task"


def scored(config: Config) -> list[Job]:
    """The score tables of all studies of the config's own models, each once."""
    return _of_own_models(config, "scores", OF_SCORES)


def measured(config: Config) -> list[Job]:
    """The metrics tables of all studies of the config's own models, each once."""
    return _of_own_models(config, "metrics", OF_METRICS)


def published(config: Config) -> list[str]:
    """The published tables that studies draw on, each once."""
    named = (s.published for s in config.studies.values() if s.published)
    return list(dict.fromkeys(named))


def _of_own_models(config: Config, table: str, of: tuple[str, ...]) -> list[Job]:
    own = (s for s in config.studies if not config.studies[s].published)
    return list(
        dict.fromkeys(
            job for s in own if set(of) & set(needs(config, s))
            for job in made_from(config, s, table)
        )
    )  # fmt: skip


def swept(config: Config) -> list[Job]:
    """Tables that tell the weights of models with several checkpoints, in the config's order.

    All metrics tables that are wanted; of a checkpoint that has none, one table of scores.
    """
    found: dict[tuple[str, ...], dict[Job, None]] = {}
    for job in measured(config):
        found.setdefault(job.names[:2], {})[job] = None
    for job in scored(config):
        if job.names[:2] not in found:
            found[job.names[:2]] = {job: None}
    several = ((m, entry) for m, entry in config.models.items() if len(entry.revisions) > 1)
    return [job for m, entry in several for r in entry.revisions for job in found.get((m, r), ())]


def all_tasks(config: Config) -> list[str]:
    """The tasks that are scored, and those whose texts are a corpus."""
    of_corpora = [c.source.task for c in config.corpora.values() if hasattr(c.source, "task")]
    return list(dict.fromkeys([*config.tasks, *of_corpora]))


def mteb_tasks(config: Config) -> list[str]:
    """The tasks of mteb's, or of the quickstart's, whose data a config reads."""
    own = config.token_tasks
    named = [t for t in all_tasks(config) if t not in own and t not in config.own_tasks]
    return list(
        dict.fromkeys([*named, *(t.pairs for t in own.values() if isinstance(t, PairTask))])
    )


def targets(config: Config) -> list[Job]:
    """The jobs whose files are results in their own right; all else is made on the way.

    A new stage whose files no other stage reads is added here, in `_targets`.
    """
    return list(dict.fromkeys(_targets(config)))


def _targets(config: Config) -> Iterator[Job]:
    for study in config.studies:
        yield Job("draw_study", (study,))
        for table in OF_STUDY:
            if table in needs(config, study):
                yield from made_from(config, study, table)
    for model in config.nano:
        yield Job("train_nano", (model,))
    if swept(config):
        yield Job("compare_weights")
    if scored(config):
        yield Job("find_best_layers")
    if measured(config) or scored(config) or published(config):
        yield Job("build_explorer")


def fetched(config: Config) -> list[Job]:
    """What a config takes from the hub, each once."""
    wanted = [
        Job("fetch_model", (m, r))
        for m, entry in config.models.items()
        if any(hasattr(source, "hub") for source in (entry.source, *entry.adapters))
        for r in entry.revisions
    ]  # fmt: skip
    wanted += [
        Job("fetch_corpus", (c,)) for c, entry in config.corpora.items()
        if hasattr(entry.source, "hub")
    ]  # fmt: skip
    local = {*config.task_folders, *QUICKSTART}
    wanted += [
        Job("fetch_task", (t,)) for t, entry in config.token_tasks.items()
        if isinstance(getattr(entry, "questions", None), HubQuestions)
    ]  # fmt: skip
    return wanted + [Job("fetch_task", (t,)) for t in mteb_tasks(config) if t not in local]
