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
    require_columns,
    require_once,
    with_output,
)
from layerwise.association.order import Order, in_order
from layerwise.association.scores import mean_scores, representation
from layerwise.association.selection import CONSENSUS, NESTED
from layerwise.association.table import ALL_MODELS
from layerwise.config.association import OWN_TEXTS
from layerwise.config.kinds import (
    DIMENSIONS,
    KINDS,
    NAMES,
    Kind,
    Roles,
    refuse,
    roles_of,
    without_role,
)
from layerwise.config.studies import MetricChoice, Study, several
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.labels import SCORE, SUBLAYERS, TOKENS
from layerwise.names import order_key
from layerwise.stats import FEW, FEWEST, Estimate
from layerwise.vocabulary import LABELS

log = logging.getLogger(__name__)

VARIANT = ["protocol", "normalization", "alpha"]
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
        Level of the intervals of scores.
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
            log.info("%s: not shown: %s", self.study.kind, words)

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
        shown = self._with_several(
            self.checkpoints([t for t in (metrics, scores) if t is not None])
        )
        parts = []
        if scores is not None:
            kept, placed = self.scores(shown), self.placed(shown)
            pooling = " or ".join(several(self.study.pooling))
            there = set(kept["model"])
            self.omit([m for m in shown if m not in there], f"not scored by {pooling}")
            shown = {m: r for m, r in shown.items() if m in there}
            # The mean is over what has no role; a task has a type as well.
            groups = [d for d in ("task_type", "task") if placed & {d, "task"}]
            parts.append(mean_scores(kept, groups).assign(y=SCORE, metric=SCORE))
        if metrics is not None:
            parts.append(with_intervals(self.metrics(metrics, shown)))
        return self.tidy(pd.concat(parts, ignore_index=True))

    def prompts(self) -> pd.DataFrame:
        """Values of each prompt, of the study's metrics; errors as for `curves`."""
        # Values of prompts are raw; picking a variant asks for a normalisation.
        prompts = self.tables["prompts"].assign(normalization="raw")
        require_columns(prompts, ["prompt_id"], "prompts")
        shown = self._with_several(self.checkpoints([prompts]))
        table = self.tidy(self.metrics(prompts, shown))
        if (n := table["prompt_id"].nunique()) < FEW:
            log.warning("%s rests on %d prompts; its intervals are rough.", self.study.kind, n)
        return table

    def tidy(self, table: pd.DataFrame) -> pd.DataFrame:
        """Sorted rows with all dimensions; those without a role have one value."""
        table = with_dimensions(table)
        self.require_roles(table)
        return self.sort(table)

    def placed(self, shown: Mapping[str, Sequence[str]]) -> set[str]:
        """The dimensions that have a role if a study shows these checkpoints of each model."""
        roles = roles_of(self.study, several=any(len(r) > 1 for r in shown.values()))
        return {d for dimensions in roles.values() for d in dimensions}

    def rows(self, table: pd.DataFrame, *dimensions: str) -> pd.DataFrame:
        """The rows with the values that the study names, if it names any, of some dimensions.

        Raises
        ------
        LayerwiseError
            If a value is not there.
        """
        for dimension in dimensions:
            wanted = several(getattr(self.study, NAMES[dimension]))
            table = only(table, dimension, wanted) if wanted else table
        return table

    def checkpoints(self, tables: Sequence[pd.DataFrame]) -> dict[str, list[str]]:
        """Checkpoints of each model that a study shows: those that all of its tables have."""
        study = self.study
        wanted = study.revisions or self.kind.revisions
        for table in tables:
            self.rows(table, "model")
            if isinstance(wanted, tuple):
                only(table, "revision", wanted)
        there = set.intersection(*({str(m) for m in t["model"].unique()} for t in tables))
        found = {}
        for model in study.models or sorted(there):
            each = [set(t.loc[t["model"] == model, "revision"].unique()) for t in tables]
            names = self.order.checkpoints(model, set.intersection(*each))
            found[model] = names[-1:] if wanted == "last" else names
            if isinstance(wanted, tuple):
                found[model] = [name for name in names if name in wanted]
        shown = {m: r for m, r in found.items() if r}
        if not shown:
            raise LayerwiseError(
                "The tables of this study have no model and checkpoint in common; name others "
                "under `models` or `revisions`.",
                code="too_few",
            )
        return shown

    def _with_several(self, shown: dict[str, list[str]]) -> dict[str, list[str]]:
        if not self.kind.checkpoints:
            return shown
        single = [m for m, r in shown.items() if len(r) < 2]
        if len(single) == len(shown):
            raise LayerwiseError(
                f"A study of kind {self.study.kind} needs a model with two or more checkpoints; "
                f"these tables have one of {', '.join(single)}.",
                code="too_few",
            )
        self.omit(single, "one checkpoint")
        return {m: r for m, r in shown.items() if m not in single}

    def scores(self, shown: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """The scores that a study is about, at some checkpoints.

        Raises
        ------
        LayerwiseError
            If a task, pooling or token selection asked for is not there.
        """
        require_columns(self.tables["scores"], SCORE_COLUMNS, "scores")
        scores = at_checkpoints(with_output(self.tables["scores"]), shown)
        return self.rows(self.of_pooling(scores), "task", "task_type", "tokens")

    def of_pooling(self, table: pd.DataFrame) -> pd.DataFrame:
        """Scores of the study's poolings."""
        if self.study.pooling == "mean":
            others = sorted(set(table["pooling"]) - {"mean"})
            self.omit(others, "another pooling; name it under `pooling`")
        return self.rows(table, "pooling")

    def metrics(self, table: pd.DataFrame, shown: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """The metrics that a study is about, at some checkpoints, each in its variant.

        Raises
        ------
        LayerwiseError
            If a corpus, sublayer, token selection or variant asked for is not there.
        """
        require_columns(table, METRIC_COLUMNS, "metrics")
        block = table["sublayer"].fillna(BLOCK) if "sublayer" in table else BLOCK
        kept = at_checkpoints(table.assign(sublayer=block), shown)
        if "sublayer" not in self.placed(shown) and not self.study.sublayers:
            kept = kept[kept["sublayer"] == BLOCK]
        elif kept["sublayer"].nunique() < 2:
            raise LayerwiseError(
                "These metrics hold no sublayers to compare; name some in extract.sublayers.",
                code="missing",
            )
        if OWN_TEXTS not in (self.study.corpora or ()):
            kept = self.rows(kept, "corpus")
        kept = self.variants(self.rows(kept, "sublayer", "tokens"))
        return kept.assign(representation=kept["tokens"])

    def variants(self, metrics: pd.DataFrame) -> pd.DataFrame:
        """The study's metrics, each in its variant; `y` names metric and variant.

        Variants of one metric that the study itself lists (``alpha: [1, 2]``) share one `y`.
        """
        study, choices = self.study, self.study.curves
        if choices is None:
            choices = study.variants(sorted(of_variant(metrics, study)["metric"].unique()))
        fixed = [n for n in VARIANT if len(several(getattr(study, n))) < 2]
        names = {(c.metric, *(getattr(c, n) for n in fixed)) for c in choices}
        parts = []
        for choice in choices:
            mine = only(metrics, "metric", [choice.metric])
            part, y = of_variant(mine, choice), choice.metric
            if part.empty:
                asked = choice.model_dump(include=set(VARIANT), exclude_none=True)
                has = mine[VARIANT].drop_duplicates().to_numpy()[:6]
                raise LayerwiseError(
                    f"{y} is not there with {_words(asked) or 'its usual variant'}; there is "
                    f"{'; '.join('/'.join(map(str, row)) for row in has)}.",
                    code="unknown_name",
                )
            if sum(name[0] == y for name in names) > 1:
                y = f"{y}, {_words(part[fixed].iloc[0].dropna().to_dict())}"
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
        if "y" not in placed and table["y"].nunique() > 1:
            raise refuse(self.study, "y", ", ".join(table["y"].unique()))
        keys = ["y", *(d for d in DIMENSIONS if d in table and d != "y"), "layer"]
        keys += [k for k in ("prompt_id", "position") if k in table]
        require_once(table, [*keys, *(c for c in LABELS if c in table)], ["y"])

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

    def results(self, found: pd.DataFrame) -> pd.DataFrame:
        """The part of a table of associations or selections that a study shows.

        Baselines, and rows over all models, are kept with the metrics.

        Raises
        ------
        LayerwiseError
            If nothing is left, or it is of several checkpoints of a model, several corpora or
            several variants of a metric.
        """
        over_models = found["model"] == ALL_MODELS
        shown = self.checkpoints([found[~over_models]])
        self.placed(shown)
        kept = pd.concat([at_checkpoints(found, shown), found[over_models]])
        kept = kept[kept["task_type"] == task_type_of(self.study, kept)]
        kept = self.rows(kept, "pooling", "tokens")
        base, rules = kept["protocol"] == BASELINE, kept["metric"].isin([CONSENSUS, NESTED])
        chosen = self.rows(kept[~base & ~rules], "corpus")
        corpora = sorted(chosen["corpus"].unique())
        if len(corpora) != 1:
            raise LayerwiseError(
                f"A study of kind {self.study.kind} needs one corpus; these tables are on "
                f"{', '.join(corpora) or 'none that fits'}: name one under `corpora`.",
                code="ambiguous",
            )
        chosen = self.variants(chosen)
        for metric, part in chosen.groupby("metric"):
            if len(part[VARIANT].drop_duplicates()) > 1:
                raise LayerwiseError(
                    f"A study of kind {self.study.kind} has one row per metric, and this one "
                    f"names {metric} in several variants; name one.",
                    code="ambiguous",
                )
        like = kept["corpus"].isin(corpora) & kept["protocol"].isin(chosen["protocol"])
        return pd.concat([chosen, kept[base | (rules & like)]], ignore_index=True)


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
            f"{row['revision']}; name other metrics under `metrics`.",
            code="too_few",
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
    there = [(m, r) for m, revisions in shown.items() for r in revisions]
    return frame[pd.MultiIndex.from_frame(frame[["model", "revision"]]).isin(there)]


def only(frame: pd.DataFrame, column: str, wanted: Sequence[str]) -> pd.DataFrame:
    """The rows with these values of a column.

    Raises
    ------
    LayerwiseError
        If a value is not there.
    """
    there = frame[column].unique()
    for name in wanted:
        if name not in there:
            raise LayerwiseError(
                f"This study asks for the {column.replace('_', ' ')} {name!r}"
                f"{closest(name, there)}, which its tables don't have; they have "
                f"{', '.join(sorted(map(str, there))) or 'none'}.",
                code="unknown_name",
            )
    return frame[frame[column].isin(list(wanted))]


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


def of_variant(table: pd.DataFrame, asked: Study | MetricChoice) -> pd.DataFrame:
    """The rows of a variant: the one asked for, else the usual one, else the only one there is.

    A metric without an alpha has one curve, whatever alpha is asked for.
    """
    for name in VARIANT:
        there = table[name].dropna().unique()
        usual = [USUAL[name]] if USUAL[name] in there or len(there) != 1 else list(there)
        wanted = several(getattr(asked, name)) or usual
        table = table[table[name].isin(wanted) | table[name].isna()]
    return table


def _words(variant: Mapping[Any, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in variant.items())
