"""Rows of the tidy tables that a study shows: filtered, averaged over tasks, never pooled else.

`Data.curves` returns one long table in which the study's roles identify every curve:

========================= =====================================================================
y, metric                 what is drawn: ``score``, or a metric (with its variant, if several)
model, revision, ...      the other dimensions; empty where a score or metric has none
layer, depth              of the curve's points
value, low, high          scores in [0, 1], metrics in their units; 95% intervals
output_score              score of the model's output, the same on a curve's rows
output_from               ``output``, or ``last layer`` where that replaces it
chance                    score of guessing, where it is known
n, n_left_out             prompts, and prompts without a value
n_tasks, n_clusters       tasks, and clusters of tasks that share texts
========================= =====================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import (
    BASELINE,
    BLOCK,
    METRIC_COLUMNS,
    SCORE_COLUMNS,
    ScoreCurves,
    require_columns,
    score_curves,
    with_output,
)
from layerwise.association.order import Order, in_order
from layerwise.association.selection import CONSENSUS, NESTED
from layerwise.association.table import ALL_MODELS
from layerwise.config.association import OWN_TEXTS
from layerwise.config.kinds import (
    DIMENSIONS,
    KINDS,
    POOLED,
    Kind,
    Roles,
    refuse,
    roles_of,
    without_role,
)
from layerwise.config.studies import MetricChoice, Study, several
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.labels import SCORE, SUBLAYERS, TOKENS, representation
from layerwise.names import order_key
from layerwise.stats import FEW, FEWEST, Estimate, clustered_mean_ci, within
from layerwise.vocabulary import LABELS

log = logging.getLogger(__name__)

# Types of task whose main score is a correlation, from -1 to 1; all others' is from 0 to 1.
CORRELATED = frozenset({"STS", "Summarization", "InstructionReranking"})
VARIANT = ("protocol", "normalization", "alpha")
USUAL = {"protocol": "paper", "alpha": 1.0, "normalization": "raw"}
POINT = ["model", "revision", "representation"]


@dataclass(frozen=True)
class Data:
    """A study with the tables it reads.

    Attributes
    ----------
    study : Study
    tables : mapping of name to DataFrame
        Those that `layerwise.config.kinds.needs` names.
    order : Order
        Of models and checkpoints.
    directions : mapping of metric to 1 or -1
        Better end of each metric.
    own_texts : mapping of corpus to task
        Corpora that are the texts of a task.
    confidence : float
        Level of the intervals in tables of probes.
    omitted : list of str
        What is not shown although it is there; filled while the table is made.
    """

    study: Study
    tables: Mapping[str, pd.DataFrame]
    order: Order = field(default_factory=Order)
    directions: Mapping[str, int] = field(default_factory=dict)
    own_texts: Mapping[str, str] = field(default_factory=dict)
    confidence: float = 0.95
    omitted: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """The kind of the study."""
        return KINDS[self.study.kind]

    def omit(self, names: Sequence[str], why: str) -> None:
        """Log and remember that something is not shown."""
        words = f"{', '.join(names)} ({why})"
        if names and words not in self.omitted:
            self.omitted.append(words)
            log.warning("%s: not shown: %s", self.study.kind, words)

    def roles(self, table: pd.DataFrame) -> Roles:
        """Dimensions of each role for a table of one or several checkpoints a model."""
        return roles_of(self.study, several=_several(table))

    def curves(self, name: str = "metrics") -> pd.DataFrame:
        """Scores, metrics (of the named table) or both by layer, as the module says.

        Raises
        ------
        LayerwiseError
            If something asked for is not there, or a dimension without a role has several values.
        """
        scores, metrics = self.tables.get("scores"), self.tables.get(name)
        tables = [t for t in (metrics, scores) if t is not None]
        shown = self._with_several(self.checkpoints(tables))
        several_shown = any(len(r) > 1 for r in shown.values())
        placed = {d for v in roles_of(self.study, several=several_shown).values() for d in v}
        parts = []
        if scores is not None:
            kept = at_checkpoints(self.pick_scores(), shown)
            pooling = " or ".join(several(self.study.pooling))
            self.omit(
                [m for m in shown if m not in set(kept["model"])], f"not scored by {pooling}"
            )
            # The mean is over what has no role; a task has a type as well.
            groups = (
                ("task_type", "task")
                if "task" in placed
                else tuple(d for d in POOLED if d in placed)
            )
            parts.append(mean_scores(kept, groups).assign(y=SCORE, metric=SCORE))
            shown = {m: r for m, r in shown.items() if m in set(parts[0]["model"])}
        if metrics is not None:
            picked = self.pick_metrics(metrics, "sublayer" in placed)
            chosen = self.pick_variants(at_checkpoints(picked, shown))
            parts.append(with_intervals(chosen).assign(representation=chosen["tokens"]))
        table = with_dimensions(pd.concat(parts, ignore_index=True))
        self.require_roles(table)
        return self.sort(table)

    def prompts(self) -> pd.DataFrame:
        """Values of each prompt, of the study's metrics.

        Raises
        ------
        LayerwiseError
            If something asked for is not there, or a dimension without a role has several values.
        """
        # Values of prompts are raw; picking a variant asks for a normalisation.
        prompts = self.tables["prompts"].assign(normalization="raw")
        require_columns(prompts, [*METRIC_COLUMNS, "prompt_id"], "prompts")
        shown = self._with_several(self.checkpoints([prompts]))
        placed = {d for v in self.kind.roles.values() for d in v}
        picked = self.pick_metrics(prompts, "sublayer" in placed)
        chosen = self.pick_variants(at_checkpoints(picked, shown))
        table = with_dimensions(chosen.assign(representation=chosen["tokens"]))
        self.require_roles(table)
        self.warn_of_few(table["prompt_id"].nunique())
        return self.sort(table)

    def warn_of_few(self, n: int) -> None:
        """Warn where a study rests on few prompts."""
        if n < FEW:
            log.warning("%s rests on %d prompts; its intervals are rough.", self.study.kind, n)

    def checkpoints(self, tables: Sequence[pd.DataFrame]) -> dict[str, list[str]]:
        """Checkpoints of each model that a study shows: those that all of its tables have."""
        study = self.study
        wanted = study.revisions or self.kind.revisions
        for table in tables:
            only(table, "model", study.models)
        there = set.intersection(*({str(m) for m in t["model"].unique()} for t in tables))
        found = {}
        for model in study.models or sorted(there):
            each = [set(t.loc[t["model"] == model, "revision"].unique()) for t in tables]
            ordered = self.order.checkpoints(model, set.intersection(*each))
            if isinstance(wanted, tuple):
                found[model] = [r for r in ordered if r in wanted]
            else:
                found[model] = ordered[-1:] if wanted == "last" else ordered
        if isinstance(wanted, tuple):
            for table in tables:
                only(table, "revision", wanted)
        shown = {m: r for m, r in found.items() if r}
        if not shown:
            raise LayerwiseError(
                "The tables of this study have no model and checkpoint in common; name others "
                "under `models` or `revisions`."
            )
        return shown

    def _with_several(self, shown: dict[str, list[str]]) -> dict[str, list[str]]:
        if not self.kind.checkpoints:
            return shown
        single = [m for m, r in shown.items() if len(r) < 2]
        if len(single) == len(shown):
            raise LayerwiseError(
                f"A study of kind {self.study.kind} needs a model with two or more checkpoints; "
                f"these tables have one of {', '.join(single)}."
            )
        self.omit(single, "one checkpoint")
        return {m: r for m, r in shown.items() if m not in single}

    def pick_scores(self) -> pd.DataFrame:
        """The scores that a study is about, of all checkpoints.

        Raises
        ------
        LayerwiseError
            If a model, task, pooling or token selection asked for is not there.
        """
        study, scores = self.study, self.tables["scores"]
        require_columns(scores, SCORE_COLUMNS, "scores")
        kept = only(with_output(scores), "model", study.models)
        others = sorted(set(kept["pooling"]) - set(several(study.pooling)))
        kept = only(kept, "pooling", several(study.pooling))
        if study.pooling == "mean":
            self.omit(others, "another pooling; name it under `pooling`")
        kept = only(kept, "task", study.tasks)
        kept = only(kept, "task_type", study.task_types)
        return only(kept, "tokens", study.tokens)

    def scores_of_one_pooling(self, table: pd.DataFrame) -> pd.DataFrame:
        """Mean scores at the checkpoints of a table.

        Raises
        ------
        LayerwiseError
            If they are of several poolings.
        """
        chosen = at_checkpoints(self.pick_scores(), checkpoints_in(table))
        if chosen["pooling"].nunique() > 1:
            raise LayerwiseError(
                f"A study of kind {self.study.kind} shows one pooling; name one under `pooling`."
            )
        return mean_scores(chosen)

    def pick_metrics(self, metrics: pd.DataFrame, all_sublayers: bool = False) -> pd.DataFrame:
        """The metrics that a study is about, of all checkpoints and variants.

        Raises
        ------
        LayerwiseError
            If a model, corpus, sublayer or token selection asked for is not there.
        """
        study = self.study
        require_columns(metrics, METRIC_COLUMNS, "metrics")
        kept = only(metrics, "model", study.models)
        block = kept["sublayer"].fillna(BLOCK) if "sublayer" in kept else BLOCK
        kept = kept.assign(sublayer=block)
        if study.sublayers or not all_sublayers:
            kept = only(kept, "sublayer", study.sublayers or (BLOCK,))
        elif kept["sublayer"].nunique() < 2:
            raise LayerwiseError(
                "These metrics hold no sublayers to compare; name some in extract.sublayers."
            )
        if study.corpora is not None and OWN_TEXTS not in study.corpora:
            kept = only(kept, "corpus", study.corpora)
        return only(kept, "tokens", study.tokens)

    def pick_variants(self, metrics: pd.DataFrame) -> pd.DataFrame:
        """The study's metrics, each in its variant; `y` names metric and variant.

        Variants of one metric that the study itself lists (``alpha: [1, 2]``) share one `y`.
        """
        study, choices = self.study, self.study.curves
        if choices is None:
            kept = metrics
            for name in VARIANT:
                usual = _usual(kept, name, several(getattr(study, name)))
                kept = kept[kept[name].isin(usual) | kept[name].isna()]
            choices = study.variants(sorted(kept["metric"].unique()))
        fixed = [n for n in VARIANT if len(several(getattr(study, n))) < 2]
        names = {(c.metric, *(getattr(c, n) for n in fixed)) for c in choices}
        parts = []
        for choice in choices:
            part, variant = _variant(metrics, choice)
            y = choice.metric
            if sum(name[0] == y for name in names) > 1:
                y = ", ".join([y, *(f"{n} {variant[n]}" for n in fixed if n in variant)])
            parts.append(part.assign(y=y))
        return pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)

    def require_roles(self, table: pd.DataFrame) -> None:
        """Refuse to draw two curves as one.

        Raises
        ------
        LayerwiseError
            Naming the dimension that has several values and no role.
        """
        roles = self.roles(table)
        placed = [d for v in roles.values() for d in v if d in table]
        other = [c for c in (*DIMENSIONS, *LABELS) if c in table and c not in placed]
        counts = table.groupby(["y", *placed], dropna=False)[other].nunique().max()
        found = without_role({d: int(counts[d]) for d in other}, roles)
        for dimension in (d for d in found if d != "representation" or len(found) == 1):
            there = [v for v in self.values(table, dimension) if v]
            raise refuse(self.study, dimension, ", ".join(there))
        for dimension in self.kind.one:
            if table[dimension].nunique() > 1:
                raise refuse(self.study, dimension, ", ".join(table[dimension].unique()))
        keys = ["y", *(d for d in DIMENSIONS if d in table and d != "y"), "layer"]
        keys += [k for k in ("prompt_id", "position") if k in table]
        twice = table.duplicated([*keys, *(c for c in LABELS if c in table)])
        if twice.any():
            row = table[twice].iloc[0]
            raise LayerwiseError(
                f"The tables hold {row['y']} of {row['model']} at layer {row['layer']} more than "
                "once; give each table once."
            )

    def values(self, table: pd.DataFrame, dimension: str) -> list[str]:
        """Values of a dimension in the order of the study, of the config, or their own."""
        study = self.study
        there = [str(v) for v in table[dimension].unique()]
        if dimension == "y":
            names = [c.metric for c in study.curves or ()]
            return sorted(there, key=lambda v: _place(names, v.split(",")[0]) * (v != SCORE))
        if dimension == "revision":
            models = table["model"].unique()
            if len(models) == 1:
                return self.order.checkpoints(str(models[0]), there)
            return sorted(there, key=order_key)
        if dimension == "alpha" or dimension in LABELS:
            return sorted(there, key=lambda v: (v != "", float(v or 0)))
        selections = study.tokens or list(TOKENS)
        orders: dict[str, Sequence[str] | None] = {
            "model": study.models or self.order.models,
            "representation": [
                representation(t, p) for p in several(study.pooling) for t in selections
            ],
            "corpus": study.corpora,
            "tokens": selections,
            "task": study.tasks,
            "pooling": several(study.pooling),
            "sublayer": study.sublayers or list(SUBLAYERS),
            "task_type": study.task_types,
            "protocol": ["paper", "reference"],
            "normalization": ["raw"],
        }
        return in_order(there, orders.get(dimension))

    def sort(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows in the order in which values are shown, then by layer."""
        keys = [d for d in DIMENSIONS if d in table] + [c for c in LABELS if c in table]
        keys = [k for k in keys if table[k].nunique() > 1]
        ranks = {k: {v: i for i, v in enumerate(self.values(table, k))} for k in keys}
        by = pd.DataFrame({k: table[k].astype(str).map(ranks[k]) for k in keys}, table.index)
        by["layer"] = table["layer"]
        return table.loc[by.sort_values(list(by.columns), kind="stable").index].reset_index(
            drop=True
        )

    def points(self, table: pd.DataFrame) -> list[tuple[str, str]]:
        """The (model, checkpoint) pairs of a table, in order."""
        return [
            (model, revision)
            for model in self.values(table, "model")
            for revision in self.order.checkpoints(
                model, table.loc[table["model"] == model, "revision"].unique()
            )
        ]

    def pick_results(self, found: pd.DataFrame) -> pd.DataFrame:
        """The part of a table of associations or selections that a study shows.

        Baselines, and rows over all models, are kept with the metrics.

        Raises
        ------
        LayerwiseError
            If nothing is left, or it is of several checkpoints of a model or several corpora.
        """
        study = self.study
        single = found[found["model"] != ALL_MODELS]
        shown = self.checkpoints([single])
        roles_of(study, several=any(len(r) > 1 for r in shown.values()))
        pooled = found["model"] == ALL_MODELS
        kept = found[pooled | found.index.isin(at_checkpoints(single, shown).index)]
        kept = kept[kept["task_type"] == task_type_of(study, kept)]
        kept = only(kept, "pooling", several(study.pooling))
        kept = only(kept, "tokens", study.tokens)
        base = kept["protocol"] == BASELINE
        variant = ~base & _of_variant(kept, study, kept[~base])
        if study.metrics is not None:
            over_all = kept["metric"].isin([CONSENSUS, NESTED])
            variant = (variant & over_all) | (~base & self._named(kept, base))
        if study.corpora is not None:
            variant &= kept["corpus"].isin(study.corpora)
        corpora = sorted(kept.loc[variant, "corpus"].unique())
        if len(corpora) != 1:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs one corpus; these tables are on "
                f"{', '.join(corpora) or 'none that fits'}: name one under `corpora`."
            )
        return kept[base | variant].reset_index(drop=True)

    def _named(self, kept: pd.DataFrame, base: pd.Series[bool]) -> pd.Series[bool]:
        choices = self.study.curves or ()
        names = [m.metric for m in choices]
        only(kept[~base], "metric", names)
        found = pd.Series(False, index=kept.index)
        for choice in choices:
            if names.count(choice.metric) > 1:
                raise LayerwiseError(
                    f"A study of kind {self.study.kind} has one row per metric, and this one "
                    f"names {choice.metric} in several variants; name one."
                )
            mine = kept["metric"] == choice.metric
            one = mine & _of_variant(kept, choice, kept[~base])
            if not one.any():
                raise _other_variants(choice.metric, _asked(choice), kept[mine])
            found |= one
        return found


def task_type_of(study: Study, table: pd.DataFrame) -> str:
    """The task type that a study's associations are of; ``all`` without rows of one type."""
    one = study.task_types[0] if study.task_types and len(study.task_types) == 1 else "all"
    return one if one in set(table["task_type"]) else "all"


def curves_of(
    table: pd.DataFrame, by: Sequence[str]
) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Each combination of values with its rows, in the order of the table."""
    for key, part in table.groupby(list(by), sort=False):
        yield dict(zip(by, map(str, key), strict=True)), part


def parts_of(table: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each value of a column with its rows, in the order of the table or of its categories."""
    for key, part in table.groupby(column, sort=table[column].dtype == "category"):
        yield str(key), part


def checkpoints_in(table: pd.DataFrame) -> dict[str, list[str]]:
    """The checkpoints of each model that a table has."""
    return {m: list(part["revision"].unique()) for m, part in parts_of(table, "model")}


def matrix(part: pd.DataFrame, unit: str = "prompt_id") -> pd.DataFrame:
    """Values of one curve by prompt and layer: prompts that have a value at every layer.

    Raises
    ------
    LayerwiseError
        If there is no such prompt.
    """
    whole = part.pivot(index=unit, columns="layer", values="value").sort_index()
    wide = whole.dropna()
    row = part.iloc[0]
    if wide.empty:
        raise LayerwiseError(
            f"No prompt has a value of {row['metric']} at every layer of {row['model']} at "
            f"{row['revision']}; name other metrics under `metrics`."
        )
    if len(wide) < len(whole):
        log.warning(
            "%d of %d prompts lack %s at some layer of %s and are left out",
            len(whole) - len(wide),
            len(whole),
            row["metric"],
            row["model"],
        )
    return wide


def by_layer(found: Estimate, layers: np.ndarray, **about: Any) -> pd.DataFrame:
    """Estimates at several layers as rows: layer, depth, value, low, high, n."""
    ends = {"value": found.estimate, "low": found.low, "high": found.high}
    at = {"layer": layers, "depth": layers / max(1, layers[-1])}
    return pd.DataFrame({**about, **at, **ends, "n": found.n})


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Values with 95% intervals from their standard errors; none below `FEWEST` prompts."""
    margin = 1.959964 * table["stderr"].astype(float)
    if "n" in table:
        margin = margin.where(~table["n"].between(1, FEWEST - 1))
    return table.assign(low=table["value"] - margin, high=table["value"] + margin)


def at_checkpoints(frame: pd.DataFrame, shown: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows of these checkpoints."""
    there = {(m, r) for m, revisions in shown.items() for r in revisions}
    pairs = zip(frame["model"], frame["revision"], strict=True)
    return frame[[pair in there for pair in pairs]]


def only(
    frame: pd.DataFrame, column: str, wanted: Sequence[str] | None, where: str = ""
) -> pd.DataFrame:
    """The rows with these values of a column; None keeps all.

    Raises
    ------
    LayerwiseError
        If a value is not there.
    """
    if wanted is None:
        return frame
    there = frame[column].unique()
    for name in wanted:
        if name not in there:
            raise LayerwiseError(
                f"This study asks for the {column.replace('_', ' ')} {name!r}"
                f"{closest(name, there)}, which its {where or 'tables'} don't have; they have "
                f"{', '.join(sorted(map(str, there))) or 'none'}."
            )
    return frame[frame[column].isin(list(wanted))]


def mean_scores(scores: pd.DataFrame, groups: Sequence[str] = ()) -> pd.DataFrame:
    """Mean task score by layer with a 95% interval over task clusters.

    The interval is Student's, of each layer, after each task's own mean over layers is taken off:
    tasks differ in level, and the reader compares layers. With a single task it is the evaluator's
    own. Tasks of one cluster share texts and count as one draw.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    groups : of ``task_type`` and ``task``
        Within which the mean is taken; by default over all tasks.

    Returns
    -------
    DataFrame
        model, revision, tokens, pooling, representation, the groups, layer, depth; value,
        low, high and output_score in [0, 1] (below 0 only for correlations; null at layers where
        some task has no score); output_from, output_is_best, chance, n_tasks, n_clusters.
    """
    frames = []
    guess: Mapping[str, float] = {}
    if "chance" in scores:
        guess = {str(t): float(c) for t, c in scores.groupby("task")["chance"].first().items()}
    for curves in score_curves(scores):
        names = {"task_type": curves.task_types, "task": curves.tasks}
        labels = [tuple(names[g][i] for g in groups) for i in range(len(curves.tasks))]
        for group in dict.fromkeys(labels):
            chosen = [i for i, label in enumerate(labels) if label == group]
            values, output = curves.values[chosen], curves.output[chosen]
            low, high = _interval(scores, curves, chosen)
            gaps = np.full(len(curves.left_out), np.nan)
            layers = np.append(curves.layers, curves.left_out).astype(np.int64)
            best = curves.candidates(chosen)
            frame = pd.DataFrame(
                {
                    "model": curves.model,
                    "revision": curves.revision,
                    "tokens": curves.tokens,
                    "pooling": curves.pooling,
                    "representation": representation(curves.tokens, curves.pooling),
                    **dict(zip(groups, group, strict=True)),
                    "layer": layers,
                    "depth": layers / max(curves.last_layer, 1),
                    "value": np.append(values.mean(axis=0), gaps),
                    "low": np.append(low, gaps),
                    "high": np.append(high, gaps),
                    "output_score": output.mean(),
                    "output_from": curves.output_from,
                    "output_is_best": int(best.values.mean(axis=0).argmax()) == best.output,
                    "chance": np.mean([guess.get(curves.tasks[i], np.nan) for i in chosen]),
                    "n_tasks": len(chosen),
                    "n_clusters": len(set(curves.sources_of(chosen))),
                }
            )
            frames.append(frame.sort_values("layer"))
    table = pd.concat(frames, ignore_index=True)
    return table.drop_duplicates([*POINT, *groups, "layer"], ignore_index=True)


def _interval(
    scores: pd.DataFrame, curves: ScoreCurves, chosen: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    values, clusters = curves.values[chosen], curves.sources_of(chosen)
    none = np.full(values.shape[1], np.nan)
    if len(chosen) > 1:
        if values.shape[1] < 2:  # a single layer has no differences
            return none, none
        found = clustered_mean_ci(within(values), clusters)
        floor = -float(np.mean([curves.task_types[i] in CORRELATED for i in chosen]))
        return np.clip(found.low, floor, 1), np.clip(found.high, floor, 1)
    part = with_output(scores)
    for column in ("model", "revision", "tokens", "pooling"):
        part = part[part[column] == getattr(curves, column)]
    part = part[part["task"] == curves.tasks[chosen[0]]]
    # The interval of a mean over subsets does not follow from theirs.
    if part["subset"].nunique(dropna=False) > 1:
        return none, none
    ends = part.set_index("layer")[["score_low", "score_high"]].astype(float)
    ends = ends.reindex(curves.layers)
    return ends["score_low"].to_numpy(), ends["score_high"].to_numpy()


def _place(names: Sequence[str], name: str) -> int:
    return 1 + (names.index(name) if name in names else len(names))


def _several(table: pd.DataFrame) -> bool:
    if "revision" not in table:
        return False
    return bool(table.groupby("model")["revision"].nunique().max() > 1)


def with_dimensions(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every dimension as text, empty where a row has none."""
    for name in (*DIMENSIONS, *(c for c in LABELS if c in table)):
        column = table[name] if name in table else pd.Series("", index=table.index)
        table[name] = column.astype(object).where(column.notna(), "")
    return table


def _usual(table: pd.DataFrame, column: str, wanted: Sequence[object]) -> Sequence[object]:
    """The variant asked for, else the usual one, else the only one there is."""
    there = table[column].dropna().unique()
    usual = [USUAL[column]] if USUAL[column] in there or len(there) != 1 else list(there)
    return wanted or usual


def _variant(
    metrics: pd.DataFrame, choice: MetricChoice
) -> tuple[pd.DataFrame, dict[str, object]]:
    mine = only(metrics, "metric", [choice.metric])
    kept, found = mine, {}
    for column in VARIANT:
        # A metric without an alpha has one curve, whatever alpha the study asks for.
        if column == "alpha" and not kept["alpha"].notna().any():
            continue
        (found[column],) = _usual(kept, column, several(getattr(choice, column)))
        kept = kept[kept[column] == found[column]]
    if kept.empty:
        raise _other_variants(choice.metric, found, mine)
    return kept, found


def _of_variant(
    kept: pd.DataFrame, asked: Study | MetricChoice, there: pd.DataFrame
) -> pd.Series[bool]:
    found = pd.Series(True, index=kept.index)
    for name in VARIANT:
        usual = _usual(there, name, several(getattr(asked, name)))
        found &= kept[name].isin(usual) | kept[name].isna()
    return found


def _asked(choice: MetricChoice) -> dict[str, object]:
    return choice.model_dump(include=set(VARIANT), exclude_none=True)


def _other_variants(
    metric: str, asked: Mapping[str, object], mine: pd.DataFrame
) -> LayerwiseError:
    has = mine[list(VARIANT)].drop_duplicates()
    words = ", ".join(f"{name} {value}" for name, value in asked.items())
    return LayerwiseError(
        f"{metric} is not there with {words or 'its usual variant'}; there is "
        f"{'; '.join('/'.join(map(str, r)) for r in has.to_numpy()[:6])}."
    )
