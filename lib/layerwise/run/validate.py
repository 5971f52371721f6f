"""Checks of a config that need more than one section, or this machine, before any job runs.

Check of each study before any job: its kind makes its table from tables of made-up values.

The made-up tables have rows for everything that the config will extract, compute and score, at a
few layers and prompts. What the kind refuses in them, it would refuse in the results.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from layerwise.activations.store import ARRAYS
from layerwise.config import Config
from layerwise.config.corpora import CorpusSettings, GeneratedTexts, data_of
from layerwise.config.models import StatesSource
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.tasks import CustomEntry, LabelledEntry, MtebEntry
from layerwise.errors import Code, ConfigError, LayerwiseError, closest, listed
from layerwise.io.files import is_file, is_folder
from layerwise.metrics.registry import QUANTITIES, Metric, all_metrics, arrays_for, sections
from layerwise.models.source import locate
from layerwise.names import RESERVED, Order, encode
from layerwise.project import rules_of
from layerwise.run.plan import (
    OF_METRICS,
    OF_RESULTS,
    OF_SCORES,
    Plan,
    PlannedStudy,
    extraction_of,
    paths_of,
)
from layerwise.section import Loader, read_yaml
from layerwise.tasks import catalog
from layerwise.tasks.catalog import PAPER, TYPES, types

WITH_CORPORA = OF_METRICS | {"similarities"}
# Enough for an association given depth, a jackknife and a change between checkpoints.
N_LAYERS, N_PROMPTS, N_CHECKPOINTS = 7, 6, 2


def check_study(planned: PlannedStudy) -> None:
    """Check that a config has what one of its studies shows.

    Raises
    ------
    ConfigError
        If something is missing, or the study would average over a dimension without a role.
    """
    where = f"studies.{planned.name}"
    for problem, code in _problems(planned):
        raise ConfigError(where, problem, code=code)
    if planned.study.published or not planned.needs:
        return
    from layerwise.figures.select import Data  # imports pandas and scipy

    few = _few_checkpoints(planned)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # notes on what will not be shown come with the figure
    try:
        data = Data.of(few.study, made_up(few), Order.of(planned.config), planned.config)
        few.study.declaration.table(data)
    except LayerwiseError as error:
        raise ConfigError(where, str(error), code=error.code) from None
    finally:
        logging.disable(level)


def require_known(where: str, names: Iterable[Any], known: Iterable[Any]) -> None:
    """Refuse a name that is not known; the error has the nearest one, or the known ones."""
    choices = list(dict.fromkeys(known))
    for name in names:
        if name not in choices:
            hint = closest(str(name), map(str, choices)) or f", only {listed(choices)}"
            raise ConfigError(where, f"there is no {name!r}{hint}.", code="unknown_name")


def _problems(planned: PlannedStudy) -> Iterator[tuple[str, Code]]:
    """Sections, and keys of sections, without which there is no table to read."""
    config, study, tables = planned.config, planned.study, {*planned.needs}
    if study.published:
        scores = config.published[study.published].scores
        there = {"metrics", *OF_RESULTS} | ({"scores"} if scores else set())
        lacking = sorted(tables - there) or (["probes"] if study.declaration.only_probes else [])
        if lacking:
            problem = f"these published tables have no {' or '.join(lacking)}; name `models`"
            yield f"{problem} instead.", "unknown_name"
        return
    labelled = " of your own labels" if study.declaration.only_probes else ""
    for section, readers in (
        ("models", tables),
        ("corpora", WITH_CORPORA | {"texts"}),
        ("tasks", OF_SCORES),
    ):
        if tables & readers and not getattr(planned, section):
            problem = f"{study.kind} needs {section}{labelled}, and there are none; add some."
            yield problem, "missing"
    for model, revisions in planned.revisions.items():
        if not revisions:
            problem = f"{model} has none of these checkpoints; name others, or remove the model."
            yield problem, "too_few"
    metrics = all_metrics()
    for name in _metrics_wanted(planned):
        if "prompts" in tables and name in metrics and not metrics[name].per_prompt:
            yield (
                f"{study.kind} needs values of each prompt, {name} has one of all.",
                "unsupported",
            )
        for corpus in planned.corpora:
            if why := lacks(name, metrics, config, corpus):
                yield f"{name} {why}.", "missing"


def _metrics_wanted(planned: PlannedStudy) -> set[str]:
    """Metrics that a study or its config names; those of a kind's default are not among them."""
    choices = planned.study.metric_choices
    names = planned.config.metrics.metrics if choices is None else [c.metric for c in choices]
    return {*(names or ())} if {*planned.needs} & WITH_CORPORA else set()


def lacks(name: str, metrics: Mapping[str, Metric], config: Config, corpus: str) -> str:
    """What a config lacks for a metric on a corpus; empty if nothing."""
    metric, views = metrics.get(name), config.corpora[corpus].views.n
    if metric is None:
        return ""
    if metric.min_views > views:
        return (
            f"needs {metric.min_views} views of each prompt, and {corpus} has {views}; raise "
            f"corpora.{corpus}.views.n"
        )
    return ""


def _few_checkpoints(planned: PlannedStudy) -> PlannedStudy:
    """The study with some of each model's checkpoints, the last among them."""
    few = {
        model: (*revisions[: N_CHECKPOINTS - 1], *revisions[N_CHECKPOINTS - 1 :][-1:])
        for model, revisions in planned.revisions.items()
    }
    study = planned.study
    if isinstance(study.revisions, tuple):
        named = tuple(dict.fromkeys(itertools.chain.from_iterable(few.values())))
        study = study.model_copy(update={"revisions": named or study.revisions})
    short = PlannedStudy(planned.name, study, planned.config)
    short.revisions = few
    return short


def made_up(planned: PlannedStudy) -> dict[str, pd.DataFrame]:
    """The tables that a study reads, with made-up values.

    There are rows of metrics and of scores for everything that the config computes and scores; the
    rows of the other tables follow from these.
    """
    needs = {*planned.needs}
    layers = pd.DataFrame({"layer": range(N_LAYERS)})
    layers["depth"] = layers["layer"] / (N_LAYERS - 1)
    prompts = pd.DataFrame({"prompt_id": [f"p{n}" for n in range(N_PROMPTS)]})
    tables = {"texts": prompts.assign(text="a text")}
    if needs & WITH_CORPORA:
        by_prompt = [name for name, metric in all_metrics().items() if metric.per_prompt]
        everything = _metrics(planned)
        is_quantity = everything["metric"].isin([*QUANTITIES])
        metrics = everything[~is_quantity]
        raw = metrics[metrics["normalization"] == "raw"]
        of_prompts = raw[raw["metric"].isin(by_prompt)].merge(prompts, how="cross")
        tables["metrics"] = metrics.merge(layers, how="cross")
        tables["prompts"] = of_prompts.merge(layers, how="cross")
        of_blocks = everything[is_quantity].assign(sublayer="block", protocol="paper")
        positions = of_blocks.drop_duplicates().merge(POSITIONS, how="cross")
        tables["positions"] = positions.merge(layers, how="cross")
        tables["similarities"] = _similarities(everything).merge(layers, how="cross")
    if needs & OF_SCORES:
        tables["scores"] = pd.DataFrame(_scores(planned)).merge(layers, how="cross")
    if needs & OF_RESULTS:
        rows = raw[raw["sublayer"] == "block"]
        tables |= _results(rows, tables["scores"], bool(planned.config.own_texts))
    rng = np.random.default_rng(0)
    for table in tables.values():
        for column in {"value", "main_score"} & {*table}:
            table[column] = rng.uniform(0.4, 0.6, len(table))
    return {name: tables[name] for name in needs}


POSITIONS = pd.DataFrame({"position": [1, 2], "quartile_1": 0.3, "median": 0.5, "quartile_3": 0.7})


def _metrics(planned: PlannedStudy) -> pd.DataFrame:
    """Each metric and quantity along the sequence in each of its variants, without layers."""
    config, known = planned.config, all_metrics()
    names = {*(config.metrics.metrics or known), *QUANTITIES}
    choices = {choice.metric for choice in planned.study.metric_choices or ()}
    if choices and choices <= names:  # an unknown name is refused with those that are known
        names = choices
    normalizations = {n: {*itertools.chain(*m.normalizations.values())} for n, m in known.items()}
    normalizations |= {name: {*quantity.normalizations} for name, quantity in QUANTITIES.items()}
    computed, rows = {*config.metrics.normalizations}, []
    for (model, revision), corpus in itertools.product(planned.points, planned.corpora):
        run = extraction_of(config, model, corpus)
        about = {"model": model, "revision": revision, "corpus": corpus}
        for name in sorted(n for n in names if not lacks(n, known, config, corpus)):
            if not arrays_for([name]) <= {*run.arrays}:
                continue
            orders = known[name].orders if name in known else name == "prefix_entropy"
            variants = {
                "sublayer": ("block", *run.sublayers),
                "protocol": run.protocols,
                "tokens": run.tokens,
                "alpha": config.metrics.alphas if orders else (np.nan,),
                "normalization": {"raw", *computed & normalizations[name]},
            }
            for values in itertools.product(*variants.values()):
                rows.append({**about, "metric": name, **dict(zip(variants, values, strict=True))})
    return pd.DataFrame(rows).assign(value=0.0, stderr=0.1, n=N_PROMPTS, n_tokens=9)


def _scores(planned: PlannedStudy) -> Iterator[dict[str, Any]]:
    """Each task by model, checkpoint, tokens, pooling and readout, without layers."""
    config = planned.config
    known = set().union(*types().values())
    # The metadata of mteb take seconds to load: a task may be of any type asked for.
    asked = [name for name in planned.study.task_types or () if name in known] or ["STS"]
    common = {"subset": "default", "split": "test", "n_runs": 9, "score_low": 0.3}
    common |= {"score_high": 0.7, "main_score": 0.0}
    probed = {"control": 0.4, "selectivity": 0.1, "baseline": 0.3, "chance": 0.3}
    for (model, revision), (n, task) in itertools.product(
        planned.points, enumerate(planned.tasks)
    ):
        scoring, entry = config.scoring_of(model), config.tasks[task]
        tokens: Sequence[str] = config.extraction(model).tokens
        poolings: Sequence[str] = scoring.poolings or ("mean",)
        if isinstance(entry, CustomEntry) and entry.forms:
            tokens, poolings = ("all",), entry.forms
        task_type = getattr(entry, "task_type", None) or asked[n % len(asked)]
        about = {"model": model, "revision": revision, "task": task, "task_type": task_type}
        if isinstance(entry, LabelledEntry) and entry.kind != "pairs":
            about |= probed
        for reading in itertools.product(tokens, poolings, scoring.readouts):
            names = dict(zip(("tokens", "pooling", "readout"), reading, strict=True))
            yield {**about, **common, **names}


def _results(
    metrics: pd.DataFrame, scores: pd.DataFrame, own_texts: bool
) -> dict[str, pd.DataFrame]:
    """Associations and selections of metrics by pooling and task type, of and over models."""
    from layerwise.association.table import ALL_MODELS
    from layerwise.figures.select import MEASURES

    scores = pd.concat([scores, scores.assign(task_type="all")])
    rows = metrics.merge(scores[["pooling", "task_type"]].drop_duplicates(), how="cross")
    if own_texts:
        rows = pd.concat([rows, rows.assign(corpus=OWN_TEXTS)]).drop_duplicates()
    rows = pd.concat([rows, rows.assign(model=ALL_MODELS, revision=ALL_MODELS)]).drop_duplicates()
    rows = rows.assign(n_sources=scores["task"].nunique(), n_layers=N_LAYERS)
    unknown = dict.fromkeys(("low", "high", "null95", "sign", "n_tasks"), np.nan)
    measures = pd.DataFrame({"measure": [*MEASURES]})
    return {
        "selections": rows,
        "associations": rows.merge(measures, how="cross").assign(**unknown),
    }


def _similarities(metrics: pd.DataFrame) -> pd.DataFrame:
    """Each checkpoint with itself and with the first, by token selection, at the same layer."""
    point, keys = ["model", "revision"], ["model", "revision", "corpus", "tokens"]
    other = metrics[keys].drop_duplicates()
    first = other.assign(**other.iloc[0][point])
    pairs = [one.join(other[point].add_prefix("other_")) for one in (first, other)]
    rows = pd.concat(pairs).drop_duplicates()
    rows = rows.merge(pd.DataFrame({"measure": ["cka_debiased", "rsa"]}), how="cross")
    rows = rows.merge(pd.DataFrame({"other_layer": range(N_LAYERS)}), how="cross")
    return rows.assign(protocol="paper", value=0.0, stderr=0.1, n=N_PROMPTS)


log = logging.getLogger(__name__)


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
        return validate(Config.of(_parse_options(document, documents)))
    except ConfigError as error:
        raise error.in_file(", ".join(map(str, files))) from None


def _parse_options(value: Any, in_files: Sequence[Any]) -> Any:
    """Parse the texts that ``--config 'extract={threads: 4}'`` adds to a document: YAML to values.

    Parameters
    ----------
    in_files : sequence
        What the files have in the place of `value`; texts of theirs stay.
    """
    if isinstance(value, Mapping):
        mappings = [each for each in in_files if isinstance(each, Mapping)]
        return {k: _parse_options(v, [m[k] for m in mappings if k in m]) for k, v in value.items()}
    if isinstance(value, list):
        items = [item for each in in_files if isinstance(each, list) for item in each]
        return [_parse_options(item, items) for item in value]
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
    media = [name for name, c in config.corpora.items() if not isinstance(c, CorpusSettings)]
    for name, corpus in config.corpora.items():
        if isinstance(corpus.source, GeneratedTexts):
            where = f"corpora.{name}.source.generate.model"
            yield where, [corpus.source.generate.model], models
    yield "metrics.metrics", config.metrics.metrics or (), metrics
    yield "extract.arrays", config.extract.arrays, ARRAYS
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
                if pickled := getattr(model.source, "pickled", None):
                    for file in filter(None, (pickled.file, pickled.vocabulary)):
                        if not is_file(location.folder / file):
                            problem = (
                                f"{location.folder} has no {file}; name its file in `pickled`."
                            )
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
        for entry in config.published.values():
            corpora += _names_in(Path(entry.metrics), "corpus", "dataset")
            tasks += _names_in(Path(entry.scores), "task") if entry.scores else []
    require_known("association.own_texts", texts, corpora)
    require_known("association.own_texts", texts.values(), tasks)
    require_known("association.text_sources", sources, tasks)


def _names_in(path: Path, *columns: str) -> list[str]:
    """The names in some columns of a published table, of those that it has."""
    from layerwise.io.tables import read_table

    table = read_table(path)
    return [" ".join(str(n).split()) for c in columns if c in table for n in table[c].unique()]
