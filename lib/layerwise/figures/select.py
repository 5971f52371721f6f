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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.association.curves import (
    BASELINE,
    METRIC_COLUMNS,
    require_columns,
    require_once,
    score_curves,
    with_output,
)
from layerwise.association.scores import ENDS, mean_scores, representation, with_representation
from layerwise.association.selection import CONSENSUS, NESTED
from layerwise.association.table import ALL_MODELS
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import (
    DIMENSIONS,
    POOLED,
    VARIANT,
    MetricChoice,
    Roles,
    Study,
    key_of,
    of_usual,
    placed,
    several,
    without_role,
)
from layerwise.errors import LayerwiseError, check_name
from layerwise.metrics.registry import QUANTITIES, all_metrics, directions
from layerwise.names import Order, in_order
from layerwise.stats import FEW, Estimate, mean_ci, with_intervals
from layerwise.vocabulary import (
    BLOCK,
    FINAL_NORM,
    LABELS,
    NORMALIZATIONS,
    POOLINGS,
    PROTOCOLS,
    READOUTS,
    RESIDUAL,
    SUBLAYERS,
    TOKENS,
)

if TYPE_CHECKING:
    from layerwise.config import Config

MEASURES = {
    "r": "Partial r",
    "slope": "Points per SD given depth",
    "dcor": "dCor",
    "spearman": "Spearman’s ρ",
    "kendall": "Kendall’s τ",
}

RULES = {
    "consensus": "Consensus of the metrics",
    "model output": "Model output",
    "middle layer": "Middle layer",
    "LOES": "LOES (isotropy)",
    "best layer": "Best layer of these tasks",
    "best layer of the other tasks": "Best layer of the other tasks",
    "best rule of the others": "Best rule of the other models",
    "layer index": "Layer index",
    "distance from the middle": "Distance from the middle",
}

# Words for the values of dimensions.
HOW: dict[str, str] = {**POOLINGS}
"""Poolings, and the forms of tasks that have their own; add-ons put theirs in."""
WORDS: Mapping[str, Mapping[str, str]] = {
    "tokens": {**TOKENS},
    "sublayer": SUBLAYERS,
    "pooling": HOW,
    "normalization": {**NORMALIZATIONS},
    "protocol": {**PROTOCOLS},
    "readout": {**READOUTS},
    "measure": MEASURES,
    "end": {end: f"layer of the {end} value" for end in ENDS},
}

SCORE = "score"
SCORE_AXIS = "Mean task score (× 100)"


def representation_label(key: str) -> str:
    """Words for a key of `layerwise.association.scores.representation`."""
    base, *readout = key.split(", ")
    how, _, tokens = base.partition(" of ")
    words = [WORDS["tokens"].get(how) or HOW.get(how, how)]
    words += [value_label("tokens", tokens)] if tokens else []
    return ", ".join([*words, *(value_label("readout", r) for r in readout)])


def metric_label(metric: str) -> str:
    """Words for a metric or rule; names from published tables are unchanged."""
    declared = QUANTITIES.get(metric) or all_metrics().get(metric)
    return declared.label if declared else RULES.get(metric, metric)


def title_of(study: Study) -> str:
    """Title of a study: its own, or its kind's, which names a metric that stands alone."""
    if study.title != "":
        return study.title or ""
    metrics = {choice.metric for choice in study.metric_choices or ()}
    title = study.declaration.title
    return title.replace("Metrics", metric_label(metrics.pop())) if len(metrics) == 1 else title


def metric_unit(metric: str, normalization: str = "raw") -> str:
    """Unit of an axis; empty for plain numbers and for normalised values."""
    declared = QUANTITIES.get(metric) or all_metrics().get(metric)
    return declared.unit if declared and normalization == "raw" else ""


def with_unit(what: str, metric: str) -> str:
    """Something in the unit of a metric: ``Depth of the valley (nats)``."""
    unit = metric_unit(metric)
    return f"{what} ({unit})" if unit else what


def axis_label(metric: str, alpha: object = None, normalization: str = "raw") -> str:
    """Label of an axis: name, unit, normalisation, and alpha unless it is 1."""
    if metric == SCORE:
        return SCORE_AXIS
    notes = [metric_unit(metric, normalization or "raw")]
    if normalization not in ("", "raw"):
        notes.append(value_label("normalization", normalization))
    if alpha not in (None, "", 1) and not np.isnan(float(str(alpha))):
        notes.append(value_label("alpha", str(alpha)))
    words = ", ".join(n for n in notes if n)
    return f"{metric_label(metric)} ({words})" if words else metric_label(metric)


def value_labels(dimension: str, values: Iterable[str]) -> dict[str, str]:
    """Words for several values of a dimension; the final norm is named next to the stream."""
    words = {value: value_label(dimension, value) for value in values}
    if dimension in ("pooling", "representation") and any(v.endswith(RESIDUAL) for v in words):
        norm = value_label("readout", FINAL_NORM)
        return {v: w if v.endswith(RESIDUAL) else f"{w}, {norm}" for v, w in words.items()}
    return words


def value_label(dimension: str, value: str) -> str:
    """Words for a value of a dimension."""
    if dimension == "y":
        return "Mean task score" if value == SCORE else metric_label(value)
    if dimension == "model":
        return "over models" if value == ALL_MODELS else value
    if dimension == "representation" or (dimension == "pooling" and ", " in value):
        return representation_label(value)
    if dimension == "alpha":
        return "no α" if value == "" else f"α = {float(value):g}".replace("inf", "∞")
    if dimension in LABELS:
        return "unchanged" if value == "" else f"{dimension} {float(value):g}"
    return WORDS.get(dimension, {}).get(value, value)


log = logging.getLogger(__name__)

POINT = ["model", "revision", "representation"]
DIFFERENCE = "score difference"
OPTIONAL = frozenset({"texts"})  # images have none


@dataclass(frozen=True)
class Data:
    """A study with the tables it reads.

    Attributes
    ----------
    study : Study
    tables : mapping of name to DataFrame
        Those that the study reads.
    order : Order
        Of models and checkpoints.
    directions : mapping of metric to 1 or -1
        Better end of each metric.
    own_texts : mapping of corpus to task
        Corpora that are the texts of a task.
    omitted : list of str
        What is not shown although it is there; filled while the table is made.
    """

    study: Study
    tables: Mapping[str, pd.DataFrame]
    order: Order = field(default_factory=Order)
    directions: Mapping[str, int] = field(default_factory=dict)
    own_texts: Mapping[str, str] = field(default_factory=dict)
    omitted: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        study: Study,
        tables: Mapping[str, pd.DataFrame],
        order: Order | None = None,
        config: Config | None = None,
    ) -> Data:
        """A study's data; the parameters are those of `layerwise.figures.render.draw`.

        Raises
        ------
        LayerwiseError
            If a table is missing.
        """
        read = {name: tables[name] for name in study.reads if tables.get(name) is not None}
        missing = set(study.reads) - {*read, *OPTIONAL}
        if missing:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs tables of {', '.join(sorted(missing))}; give "
                "them.",
                code="missing_file",
            )
        better, own_texts = directions(), {}
        if config is not None:
            read = {name: with_labels(table, config.labels()) for name, table in read.items()}
            better |= config.association.directions
            own_texts = config.own_texts
            order = order or Order.of(config)
        order = order or Order()
        there = {str(m) for t in read.values() if "model" in t for m in t["model"].unique()}
        models = [*order.models, *in_order(there - {*order.models, ALL_MODELS}, ())]
        return cls(study, read, replace(order, models=models), better, own_texts)

    def omit(self, names: Sequence[str], why: str) -> None:
        """Log and remember that something is not shown."""
        words = f"{', '.join(names)} ({why})"
        if names and words not in self.omitted:
            self.omitted.append(words)
            log.info("%s: not shown: %s", self.study.kind, words)

    def roles(self, table: pd.DataFrame) -> Roles:
        """Dimensions of each role for a table of one or several checkpoints a model."""
        many = "revision" in table and table.groupby("model")["revision"].nunique().max() > 1
        n_models = table["model"].nunique() if "model" in table else 1
        return self.study.roles_for(several_checkpoints=bool(many), n_models=n_models)

    def curves(self, name: str = "metrics") -> pd.DataFrame:
        """Scores, metrics (of the named table) or both by layer, as the module says."""
        scores, metrics = self.tables.get("scores"), self.tables.get(name)
        shown = self.checkpoints(*(t for t in (metrics, scores) if t is not None))
        tables = []
        if scores is not None:
            scores = self.scores(shown)
            scored = shown["model"].isin(scores["model"])
            pooling = " or ".join(several(self.study.pooling))
            self.omit(list(shown.loc[~scored, "model"].unique()), f"not scored by {pooling}")
            # The mean is over what has no role; a task has a type as well.
            with_role = placed(self.roles(shown))
            groups = [d for d in POOLED[::-1] if d in with_role or "task" in with_role]
            shown = shown[scored]
            gaps = dict.fromkeys(c.omitted for c in score_curves(scores) if c.omitted)
            self.omit(list(gaps), "scores are missing")
            tables.append(mean_scores(scores, groups).assign(y=SCORE, metric=SCORE))
        if metrics is not None:
            tables.append(with_intervals(self.metrics(metrics, shown)))
        return self.tidy(pd.concat(tables, ignore_index=True))

    def prompts(self) -> pd.DataFrame:
        """Values of each prompt, of the study's metrics; errors as for `curves`."""
        # Values of prompts are raw; picking a variant asks for a normalisation.
        prompts = self.tables["prompts"].assign(normalization="raw")
        table = self.tidy(self.metrics(prompts, self.checkpoints(prompts)))
        if (n := table["prompt_id"].nunique()) < FEW:
            log.warning("%s rests on %d prompts; its intervals are rough.", self.study.kind, n)
        return table

    def tidy(self, table: pd.DataFrame) -> pd.DataFrame:
        """Sorted rows with all dimensions; those without a role have one value."""
        table = with_dimensions(table)
        self.require_roles(table)
        keys = [*DIMENSIONS, *LABELS, "layer", "prompt_id", "position"]
        require_once(table, [k for k in keys if k in table], "y")
        return self.sort(table)

    def rows(self, table: pd.DataFrame, *dimensions: str) -> pd.DataFrame:
        """The rows with the values that the study names, if it names any, of some dimensions."""
        for dimension in dimensions:
            wanted = several(getattr(self.study, key_of(dimension)))
            table = only(table, dimension, wanted) if wanted else table
        return table

    def checkpoints(self, *tables: pd.DataFrame) -> pd.DataFrame:
        """The models and checkpoints that a study shows, in order: those that all tables have."""
        kind = self.study.declaration
        wanted = self.study.revisions or kind.revisions
        named = wanted if isinstance(wanted, tuple) else ()
        for table in tables:
            only(self.rows(table, "model"), "revision", named)
        common = self.rows(tables[0][POINT[:2]].drop_duplicates(), "model")
        for table in tables[1:]:
            common = at_checkpoints(common, table)
        shown = []
        for model in in_order(common["model"].unique(), self.study.models or self.order.models):
            revisions = common.loc[common["model"] == model, "revision"]
            names = self.order.checkpoints(model, revisions)
            names = [n for n in names if n in named] if named else names
            shown += [(model, name) for name in (names[-1:] if wanted == "last" else names)]
        if not shown:
            raise LayerwiseError(
                "The tables of this study have no model and checkpoint in common; name others "
                "under `models` or `revisions`.",
                code="too_few",
            )
        points = pd.DataFrame(shown, columns=POINT[:2])
        if not kind.needs_checkpoints:
            return points
        single = points.groupby("model")["revision"].transform("size") < 2
        if single.all():
            raise LayerwiseError(
                f"A study of kind {self.study.kind} needs a model with two or more checkpoints; "
                f"these tables have one of {', '.join(points['model'])}.",
                code="too_few",
            )
        self.omit(list(points.loc[single, "model"]), "one checkpoint")
        return points[~single]

    def scores(self, shown: pd.DataFrame) -> pd.DataFrame:
        """The scores that a study is about, at some checkpoints."""
        scores = at_checkpoints(with_output(self.tables["scores"]), shown)
        return self.rows(self.of_pooling(scores), "task", "task_type", "tokens")

    def of_pooling(self, table: pd.DataFrame) -> pd.DataFrame:
        """Scores of the study's poolings."""
        if self.study.pooling != "mean":
            return self.rows(table, "pooling")
        # A model whose own pooling is another one may have no mean.
        of_mean = table["pooling"] == "mean"
        shown = of_mean | ~table["model"].isin(table.loc[of_mean, "model"])
        others = sorted(set(table.loc[~shown, "pooling"]))
        self.omit(others, "another pooling; name it in the study")
        return table[shown]

    def metrics(self, table: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
        """The metrics that a study is about, at some checkpoints, each in its variant."""
        require_columns(table, METRIC_COLUMNS, "metrics")
        block = table["sublayer"].fillna(BLOCK) if "sublayer" in table else BLOCK
        rows = at_checkpoints(table.assign(sublayer=block), shown)
        if "sublayer" not in placed(self.roles(shown)) and not self.study.sublayers:
            rows = rows[rows["sublayer"] == BLOCK]
        elif rows["sublayer"].nunique() < 2:
            raise LayerwiseError(
                "These metrics hold no sublayers to compare; name some in extract.sublayers.",
                code="missing",
            )
        if OWN_TEXTS not in (self.study.corpora or ()):
            rows = self.rows(rows, "corpus")
        rows = self.variants(self.rows(rows, "sublayer", "tokens"))
        return rows.assign(representation=rows["tokens"])

    def variants(self, metrics: pd.DataFrame) -> pd.DataFrame:
        """The study's metrics, each in its variant; `y` names metric and variant.

        Variants of one metric that the study itself lists (``alpha: [1, 2]``) share one `y`.
        """
        study, choices = self.study, self.study.metric_choices
        if choices is None:
            choices = study.variants(sorted(of_variant(metrics, study)["metric"].unique()))
        fixed = [n for n in VARIANT if len(several(getattr(study, n))) < 2]
        names = {(c.metric, *(getattr(c, n) for n in fixed)) for c in choices}
        n_variants = Counter(metric for metric, *_ in names)
        tables = []
        for choice in choices:
            of_metric = only(metrics, "metric", [choice.metric])
            table, y = of_variant(of_metric, choice), choice.metric
            if table.empty:
                asked = choice.model_dump(include=set(VARIANT), exclude_none=True)
                has = of_metric[[*VARIANT]].drop_duplicates().to_numpy()[:6]
                raise LayerwiseError(
                    f"{y} is not there with {_words(asked)}; there is "
                    f"{'; '.join('/'.join(map(str, row)) for row in has)}.",
                    code="unknown_name",
                )
            if n_variants[y] > 1:
                y = f"{y}, {_words(table[fixed].iloc[0].dropna().to_dict())}"
            tables.append(table.assign(y=y))
        return pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True)

    def require_roles(self, table: pd.DataFrame) -> None:
        """Refuse to draw two curves as one."""
        for dimension in placed(self.study.assigned_roles):
            check_name("dimension", dimension, [d for d in (*DIMENSIONS, *LABELS) if d in table])
        roles = self.roles(table)
        dimensions = [d for d in (*DIMENSIONS, *LABELS) if d in table]
        shown = [d for d in dimensions if d in placed(roles)]
        others = [d for d in dimensions if d not in shown]
        counts = table.groupby(["y", *shown], dropna=False)[others].nunique().max()
        mixed = without_role({d: int(counts[d]) for d in others}, roles)
        if "representation" in mixed and len(mixed) > 1:
            mixed.remove("representation")  # its tokens or pooling say what differs
        if "y" not in shown and table["y"].nunique() > 1:
            mixed.append("y")
        if mixed:
            values = ", ".join(filter(None, self.values(table, mixed[0])))
            raise self.study.ambiguity(mixed[0], values)

    def values(self, table: pd.DataFrame, dimension: str) -> list[str]:
        """Values of a dimension in the order in which the study lists them, else of the config.

        Checkpoints, alphas and labels that perturbations give prompts have an order of their own.
        """
        study = self.study
        present = [str(value) for value in table[dimension].unique()]
        if dimension == "revision":
            courses = table.groupby("model", sort=False)["revision"].unique()
            return self.order.shared({str(m): map(str, r) for m, r in courses.items()})
        if dimension == "alpha" or dimension in LABELS:
            # Numbers as text; rows without one come first.
            return sorted(present, key=lambda v: (v != "", float(v or 0)))
        tokens, poolings = study.tokens or list(TOKENS), several(study.pooling)
        metrics = [choice.metric for choice in study.metric_choices or ()]
        orders: dict[str, Iterable[str]] = {
            # A metric that is shown in several variants has several `y`.
            "y": [SCORE, *(y for m in metrics for y in present if y.split(",")[0] == m)],
            "model": study.models or self.order.models,
            "tokens": tokens,
            "representation": [representation(t, p) for p in poolings for t in tokens],
            "sublayer": study.sublayers or list(SUBLAYERS),
            "normalization": several(study.normalization) or ["raw"],
        }
        named = several(getattr(study, key_of(dimension)))
        return in_order(present, orders.get(dimension, named))

    def sort(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows in the order in which values are shown, then by layer."""
        keys = [d for d in (*DIMENSIONS, *LABELS) if d in table and table[d].nunique() > 1]
        ranks = {k: {v: i for i, v in enumerate(self.values(table, k))} for k in keys}

        def rank(column: pd.Series) -> pd.Series:
            return column.astype(str).map(ranks[column.name]) if column.name in ranks else column

        return table.sort_values([*keys, "layer"], key=rank, kind="stable", ignore_index=True)

    def results(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of associations or selections that a study shows.

        Baselines, and rows over all models, are shown with the metrics.
        """
        over_models = table["model"] == ALL_MODELS
        shown = at_checkpoints(table, self.checkpoints(table[~over_models]))
        rows = pd.concat([shown, table[over_models]], ignore_index=True)
        rows = rows[rows["task_type"] == task_type_of(self.study, rows)]
        rows = with_representation(self.rows(self.of_pooling(rows), "tokens"))
        rows = rows.assign(y=rows["metric"]).rename(columns={"n_sources": "n_clusters"})
        base, rules = rows["protocol"] == BASELINE, rows["metric"].isin([CONSENSUS, NESTED])
        metrics = self.variants(self.rows(rows[~base & ~rules], "corpus"))
        metrics["y"] = metrics["metric"]  # one row, whatever the variant
        self.require_roles(metrics)
        like = rows["corpus"].isin(metrics["corpus"]) & rows["protocol"].isin(metrics["protocol"])
        return pd.concat([metrics, rows[base | (rules & like)]], ignore_index=True)


def task_type_of(study: Study, table: pd.DataFrame) -> str:
    """The task type that a study's associations are of; ``all`` without rows of one type."""
    one = study.task_types[0] if study.task_types and len(study.task_types) == 1 else "all"
    return one if one in set(table["task_type"]) else "all"


def matrices(table: pd.DataFrame, by: Sequence[str]) -> dict[tuple[str, ...], pd.DataFrame]:
    """Values of each curve by prompt and layer, see `matrix`, in the order of the table."""
    return {
        tuple(map(str, key)): matrix(subset) for key, subset in table.groupby(list(by), sort=False)
    }


def matrix(subset: pd.DataFrame) -> pd.DataFrame:
    """Values of one curve by prompt and layer: prompts that have a value at every layer."""
    whole = subset.pivot(index="prompt_id", columns="layer", values="value").sort_index()
    wide = whole.dropna()
    row = subset.iloc[0]
    if wide.empty:
        raise LayerwiseError(
            f"No prompt has a value of {row['metric']} at every layer of {row['model']} at "
            f"{row['revision']}; name other metrics under `metrics`.",
            code="too_few",
        )
    if lacking := len(whole) - len(wide):
        text = "%d prompts lack %s at some layer of %s and are left out"
        log.warning(text, lacking, row["metric"], row["model"])
    return wide


def by_checkpoint(subset: pd.DataFrame) -> pd.DataFrame:
    """Values of one curve by layer and checkpoint, in the order of the table."""
    names = subset["revision"].unique()
    return subset.pivot(index="layer", columns="revision", values="value").sort_index()[names]


def shared(*wide: pd.DataFrame) -> list[pd.DataFrame]:
    """Matrices on the prompts that all have."""
    prompts = sorted(set.intersection(*(set(w.index) for w in wide)))
    if len(prompts) < 2:
        raise LayerwiseError(
            f"These models share {len(prompts)} prompts, and this study pairs prompts; "
            "show models that were extracted on one corpus.",
            code="too_few",
        )
    return [w.loc[prompts] for w in wide]


def ends(estimate: Estimate, name: str = "") -> dict[str, Any]:
    """Value, interval and p of an estimate as columns, which begin with a name if there is one."""
    names = (name, f"{name}_low", f"{name}_high", f"{name}_p")
    return dict(zip(names if name else ("value", "low", "high", "p"), estimate[:4], strict=True))


def by_layer(estimate: Estimate, layers: pd.Index, **about: Any) -> pd.DataFrame:
    """Estimates at several layers as rows: layer, depth, value, low, high, n."""
    at = {"layer": layers, "depth": layers / max(1, layers[-1])}
    interval = {"value": estimate.estimate, "low": estimate.low, "high": estimate.high}
    return pd.DataFrame({**about, **at, **interval, "n": estimate.n})


def mean_by_layer(values: pd.DataFrame, **about: Any) -> pd.DataFrame:
    """Means over prompts of values by prompt and layer as rows, see `by_layer`."""
    return by_layer(mean_ci(values), values.columns, **about)


def best_rows(table: pd.DataFrame, directions: Mapping[str, int]) -> pd.Series:
    """True at the one layer of each curve with the best score or at the metric's better end."""
    is_score = table["y"] == SCORE
    values = table["value"] * table["metric"].map(dict(directions)).astype(float).mask(is_score, 1)
    curve = [table[d] for d in (*DIMENSIONS, *LABELS) if d in table]
    top = values.groupby(curve, dropna=False).transform("max")
    of_output = is_score & (table.get("output_score", values) > top)
    best = (values == top) & ~of_output
    return best & (best.groupby(curve, dropna=False).transform("sum") == 1)


def at_checkpoints(frame: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` at the models and checkpoints of `shown`."""
    return frame.merge(shown[POINT[:2]].drop_duplicates())


def only(frame: pd.DataFrame, column: str, wanted: Sequence[str]) -> pd.DataFrame:
    """The rows with these values of a column, which must be there."""
    for name in wanted:
        check_name(column, name, frame[column].unique())
    return frame[frame[column].isin(list(wanted))]


def with_dimensions(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every dimension as text, empty where a row has none."""
    for name in (*DIMENSIONS, *(c for c in LABELS if c in table)):
        column = table[name] if name in table else pd.Series("", index=table.index)
        table[name] = column.astype(object).where(column.notna(), "")
    return table


def with_labels(table: pd.DataFrame, labels: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A table with a column for each way in which its corpora are perturbed."""
    if "corpus" not in table:
        return table
    columns = pd.DataFrame.from_dict(
        {c: labels[c] for c in table["corpus"].unique() if c in labels}, orient="index"
    )
    return table.join(columns.astype(object), on="corpus").fillna(dict.fromkeys(columns, ""))


def of_variant(table: pd.DataFrame, asked: Study | MetricChoice) -> pd.DataFrame:
    """The rows of the variant asked for, and of the usual one where none is.

    A metric without an alpha has one curve, whatever alpha is asked for.
    """
    values = {name: several(getattr(asked, name)) for name in VARIANT}
    for name, wanted in values.items():
        if wanted:
            table = table[table[name].isin(wanted) | table[name].isna()]
    return of_usual(table, [name for name, wanted in values.items() if not wanted])


def _words(variant: Mapping[Any, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in variant.items())
