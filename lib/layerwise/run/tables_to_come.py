"""Check of each study before any job: its kind makes its table from tables of made-up values.

The made-up tables have rows for everything that the config will extract, compute and score, at a
few layers and prompts. What the kind refuses in them, it would refuse in the results.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise.config import Config
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.tasks import CustomEntry, LabelledEntry
from layerwise.errors import Code, ConfigError, LayerwiseError, closest, listed
from layerwise.metrics.registry import QUANTITIES, Metric, all_metrics, arrays_for
from layerwise.names import Order
from layerwise.run.plan import OF_METRICS, OF_RESULTS, OF_SCORES, PlannedStudy, extraction_of
from layerwise.tasks.catalog import types

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
    from layerwise.figures.labels import MEASURES

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
