"""The rows of the tidy tables that a study draws, chosen, averaged, and free of silent pooling.

`rows` gives one long table in which every curve is told apart by the study's roles:

========================= =====================================================================
y, quantity               what is drawn: 0 and ``score``, or a metric's place in the study and name
model, revision, reading  and the other dimensions; empty where a score or metric has none
layer, depth              of the curve's points
value, low, high          scores in [0, 1], metrics in their units; 95 % intervals
output_score              that of the model's own output, the same on a curve's rows
output_from               ``output``, or ``last layer`` where that stands in for it
output_is_best            whether no layer has a better score
chance                    what guessing scores, where that is known
n, n_left_out, n_tasks    how much data it is on
========================= =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import (
    BLOCK,
    METRIC_COLUMNS,
    SCORE_COLUMNS,
    Floats,
    ScoreCurves,
    require_columns,
    score_curves,
    with_output,
)
from layerwise.association.order import Order, in_order
from layerwise.config.association import OWN_TEXTS
from layerwise.config.kinds import (
    DIMENSIONS,
    KINDS,
    POOLED,
    Roles,
    refuse,
    roles_of,
    without_role,
)
from layerwise.config.studies import MetricChoice, Study, several
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.labels import SUBLAYERS, TOKENS, reading
from layerwise.figures.style import Z95
from layerwise.statistics.tasks import band, gain_new_task, within_tasks
from layerwise.vocabulary import LABELS, ONE

SCORE = "score"
BASELINE = "baseline"  # the protocol of pseudo-metrics
POOLED_MODELS = "all"  # the model of associations pooled over models
CONSENSUS = "consensus"  # the rule in which metrics are taken together
NESTED = "best rule of the others"
# Types of task whose main score is a correlation, from -1 to 1; all others' is from 0 to 1.
CORRELATED = frozenset({"STS", "Summarization", "InstructionReranking"})
NUMBERS = (
    "layer", "depth", "value", "stderr", "low", "high", "n", "n_left_out", "n_tasks", "quantity",
    "prompt_id", "score", "n_tokens", "subset", "split", "n_runs", "readout", "metric",
    "output_score", "output_from", "output_is_best", "why", "text_source", "n_sources", "lead",
    "lead_low", "lead_high", "band_low", "band_high", "quartile_1", "median", "quartile_3",
    "chance",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """What a study draws.

    Attributes
    ----------
    table : DataFrame
        See the module's docstring.
    metrics : tuple of MetricChoice
        The metrics, with the variant that is drawn; y counts on from 1 where a score is drawn.
    roles : mapping of role to dimensions
    order : Order
    left_out : tuple of str
        What is not shown although it is there, for the caption.
    """

    table: pd.DataFrame
    study: Study
    metrics: tuple[MetricChoice, ...]
    roles: Roles
    order: Order
    left_out: tuple[str, ...] = ()

    @property
    def scored(self) -> bool:
        """Whether scores are drawn."""
        return not self.scored_rows.empty

    @property
    def scored_rows(self) -> pd.DataFrame:
        """The rows of scores."""
        return self.table[self.table["quantity"] == SCORE]

    def metric(self, y: object) -> MetricChoice | None:
        """The metric of a value of `y`; None for the score."""
        return None if int(str(y)) == 0 else self.metrics[int(str(y)) - 1]

    def values(self, dimension: str) -> list[str]:
        """The values of a dimension, in the order in which they are shown."""
        return values_of(self.table, dimension, self.study, self.order)

    def keys(self, role: str) -> list[tuple[str, ...]]:
        """The combinations of values that a role tells apart, in order; ``[()]`` without any."""
        return combinations(self.table, self.roles.get(role, ()), self.study, self.order)


def combinations(
    table: pd.DataFrame, dimensions: Sequence[str], study: Study, order: Order
) -> list[tuple[str, ...]]:
    """The combinations of values that a table has, in the order in which they are shown."""
    if not dimensions:
        return [()]
    ranks = [{v: i for i, v in enumerate(values_of(table, d, study, order))} for d in dimensions]
    there = {
        tuple(str(v) for v in row) for row in table[list(dimensions)].drop_duplicates().to_numpy()
    }
    return sorted(there, key=lambda key: tuple(r[v] for r, v in zip(ranks, key, strict=True)))


def at(table: pd.DataFrame, dimensions: Sequence[str], key: Sequence[str]) -> pd.DataFrame:
    """The rows of a table that have these values."""
    kept = pd.Series(True, index=table.index)
    for dimension, value in zip(dimensions, key, strict=True):
        kept &= table[dimension].astype(str) == value
    return table[kept]


def values_of(table: pd.DataFrame, dimension: str, study: Study, order: Order) -> list[str]:
    """The values of a dimension in the order of the study, of the config, or their own."""
    there = table[dimension].unique()
    if dimension == "revision":
        models = values_of(table, "model", study, order)
        each = [
            order.checkpoints(m, table.loc[table["model"] == m, "revision"].unique())
            for m in models
        ]
        return merged(each)
    if dimension == "model":
        return in_order(there, study.models or order.models)
    if dimension in LABELS:  # what is not perturbed comes before all that is
        return [str(v) for v in sorted(there, key=lambda v: (v != "", float(v or 0)))]
    if dimension in ("alpha", "y") or pd.api.types.is_numeric_dtype(table[dimension]):
        return [str(v) for v in sorted(there, key=lambda v: (v == "", float(v or 0)))]
    if dimension == "reading":
        wanted = [reading(t, p) for p in several(study.pooling) for t in study.tokens or TOKENS]
        return in_order(there, wanted)
    orders: Mapping[str, Iterable[str] | None] = {
        "corpus": study.corpora, "tokens": study.tokens or list(TOKENS), "task": study.tasks,
        "pooling": several(study.pooling), "sublayer": study.sublayers or list(SUBLAYERS),
        "layers": (ONE,),
        "task_type": study.task_types, "protocol": ["paper", "reference"],
        "normalization": ["raw", "logN", "logD", "logNlogD", "maxEntropy"],
    }  # fmt: skip
    return in_order(there, orders.get(dimension))


def merged(lists: Sequence[Sequence[str]]) -> list[str]:
    """Several lists as one, in which each keeps its order as far as they agree."""
    found: list[str] = []
    for names in lists:
        at = 0
        for name in names:
            if name in found:
                at = max(at, found.index(name) + 1)
            else:
                found.insert(at, name)
                at += 1
    return found


def rows(
    study: Study,
    order: Order,
    *,
    metrics: pd.DataFrame | None = None,
    scores: pd.DataFrame | None = None,
) -> Rows:
    """The rows that a study draws, of the tables it is given.

    Raises
    ------
    LayerwiseError
        If something asked for is not there, or a dimension without a role has several values.
    """
    tables = [t for t in (metrics, scores) if t is not None]
    shown = checkpoints(tables, study, order)
    more = any(len(r) > 1 for r in shown.values())
    roles = roles_of(study, several=more)
    placed = {d for dimensions in roles.values() for d in dimensions}
    kind = KINDS[study.kind]
    left_out = []
    if kind.checkpoints:
        single = [m for m, r in shown.items() if len(r) < 2]
        if len(single) == len(shown):
            raise LayerwiseError(
                f"A study of kind {study.kind} needs a model with two or more checkpoints; these "
                f"tables have one of {', '.join(single)}."
            )
        if single:
            left_out.append(f"{', '.join(single)} with a single checkpoint")
            shown = {m: r for m, r in shown.items() if m not in single}
    parts: list[pd.DataFrame] = []
    choices: tuple[MetricChoice, ...] = ()
    if scores is not None:
        picked = pick_scores(scores, study, everything="layers" in placed)
        kept = at_checkpoints(picked, shown)
        lacking = [m for m in shown if m not in set(kept["model"])]
        if lacking:
            left_out.append(f"{', '.join(lacking)} without the reading {_poolings(study)}")
            shown = {m: r for m, r in shown.items() if m not in lacking}
        # The mean is over what has no role; a task has a type as well.
        by_task = "task" in placed
        groups = ("task_type", "task") if by_task else tuple(d for d in POOLED if d in placed)
        found = mean_scores(kept, groups)
        without = [m for m in shown if m not in set(found["model"])]
        left_out += [f"{', '.join(without)} without a score"] if without else []
        parts.append(found.assign(y=0, quantity=SCORE))
    if metrics is not None:
        kept = at_checkpoints(pick_metrics(metrics, study, everything="sublayer" in placed), shown)
        choices, chosen = pick_variants(kept, study)
        margin = Z95 * chosen["stderr"].astype(float)
        ends = {"low": chosen["value"] - margin, "high": chosen["value"] + margin}
        parts.append(chosen.assign(reading=chosen["tokens"], quantity=chosen["metric"], **ends))
    return told_apart(
        pd.concat(parts, ignore_index=True), study, order, choices, roles, tuple(left_out)
    )


def _poolings(study: Study) -> str:
    return " or ".join(several(study.pooling))


def told_apart(
    table: pd.DataFrame,
    study: Study,
    order: Order,
    metrics: tuple[MetricChoice, ...],
    roles: Roles,
    left_out: tuple[str, ...] = (),
) -> Rows:
    """Rows of a table with every dimension, once nothing in it would be mixed.

    Raises
    ------
    LayerwiseError
        If a dimension without a role has several values.
    """
    table = table.copy()
    for dimension in DIMENSIONS:
        if dimension not in table:
            table[dimension] = ""
    words = [c for c in DIMENSIONS if c != "y"]
    placed = {d for dimensions in roles.values() for d in dimensions if d in table}
    words += [d for d in placed - {*DIMENSIONS} if table[d].isna().any()]
    table[words] = table[words].astype(object).where(table[words].notna(), "")
    made = Rows(table, study, metrics, _useful(roles, table), order, left_out)
    require_roles(made)
    return made


def checkpoints(
    tables: Sequence[pd.DataFrame], study: Study, order: Order
) -> dict[str, list[str]]:
    """The checkpoints of each model that a study shows: those that all of its tables have."""
    wanted = study.revisions or KINDS[study.kind].revisions
    models = [{str(m) for m in t["model"].unique()} for t in tables]
    everywhere = sorted(set.intersection(*models)) if models else []
    names = list(study.models) if study.models else everywhere
    for table in tables:
        _only(table, "model", study.models)
    found = {}
    for model in names:
        each = [set(t.loc[t["model"] == model, "revision"].unique()) for t in tables]
        ordered = order.checkpoints(model, set.intersection(*each))
        if isinstance(wanted, tuple):
            found[model] = [r for r in ordered if r in wanted]
        else:
            found[model] = ordered[-1:] if wanted == "last" else ordered
    there = {r for t in tables for r in t["revision"].unique()}
    for name in several(study.revisions if isinstance(study.revisions, tuple) else None):
        if name not in there:
            raise LayerwiseError(
                f"This study asks for the checkpoint {name!r}{closest(name, there)}, which its "
                f"tables don't have; they have {', '.join(sorted(there)) or 'none'}."
            )
    shown = {m: r for m, r in found.items() if r}
    if not shown:
        raise LayerwiseError(
            "The tables of this study have no model and checkpoint in common; name others under "
            "`models` or `revisions`."
        )
    return shown


def at_checkpoints(frame: pd.DataFrame, shown: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows of these checkpoints."""
    there = {(m, r) for m, revisions in shown.items() for r in revisions}
    pairs = zip(frame["model"], frame["revision"], strict=True)
    return frame[[pair in there for pair in pairs]]


def one_stream(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table with readouts, one curve for each pooling of a model and task.

    The readout ``output`` differs in the last layer alone, and is kept there beside another one.
    Of several others the first, ``residual`` where it is there, is the curve of its pooling; the
    pooling of the rest names the readout: ``mean, final_norm``.
    """
    readouts = table.groupby(["model", "task"])["readout"]
    there = {key: set(names) for key, names in readouts}
    others = {key: sorted(names - {"output"}, reverse=True) for key, names in there.items()}
    keys = zip(table["model"], table["task"], strict=True)
    first = pd.Series([next(iter(others[key]), "output") for key in keys], table.index)
    kept = table[(table["readout"] != "output") | (first == "output") | (table["depth"] == 1)]
    named = ~kept["readout"].isin(["output"]) & (kept["readout"] != first[kept.index])
    return kept.assign(
        pooling=kept["pooling"].where(~named, kept["pooling"] + ", " + kept["readout"])
    )


def _useful(roles: Roles, table: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Roles without the colours and dashes that would tell nothing apart."""
    kept = dict(roles)
    for role in ("colour", "dashes"):
        kept[role] = tuple(
            d for d in roles.get(role, ())
            if d in table and (d == "model" or table[d].nunique() > 1)
        )  # fmt: skip
    return kept


def require_roles(rows: Rows) -> None:
    """Refuse to lay two curves on one another.

    Raises
    ------
    LayerwiseError
        Naming the dimension that has several values and no role.
    """
    table = rows.table
    placed = [d for v in rows.roles.values() for d in v if d in table]
    other = [c for c in table.columns if c not in placed and c not in NUMBERS]
    keys = ["quantity", *placed]
    counts = table.groupby(keys, dropna=False)[other].nunique().max()
    found = without_role({d: int(counts[d]) for d in other}, rows.roles)
    for dimension in (d for d in found if d != "reading" or len(found) == 1):
        values = values_of(table, dimension, rows.study, rows.order)
        raise refuse(rows.study, dimension, ", ".join(v for v in values if v))
    for dimension in KINDS[rows.study.kind].one:
        if table[dimension].nunique() > 1:
            raise refuse(rows.study, dimension, ", ".join(table["quantity"].unique()))
    twice = table.duplicated([*keys, *(d for d in DIMENSIONS if d in table), "layer"])
    if twice.any() and "prompt_id" not in table:
        row = table[twice].iloc[0]
        raise LayerwiseError(
            f"The tables hold {row['quantity']} of {row['model']} at layer {row['layer']} more "
            "than once; give each table once."
        )


def mean_scores(scores: pd.DataFrame, groups: Sequence[str] = ()) -> pd.DataFrame:
    """Mean task score by layer, with an interval in which differences between tasks don't count.

    `low` and `high` are Student's interval of each layer by itself, over tasks from which each
    one's own mean over layers has been taken off (`layerwise.statistics.tasks.within_tasks`):
    tasks lie far apart in level, and what the reader compares is layers. `band_low` and
    `band_high` hold the whole curve at once. All end where the range of the scores ends. Tasks of
    the same texts are one draw. With a single task, the evaluator's own interval is given, where
    it has one and the task has a single subset.

    Parameters
    ----------
    groups : of ``task_type`` and ``task``
        Within which the mean is taken; by default over all tasks.

    Returns
    -------
    DataFrame
        model, revision, tokens, pooling, reading, layers, the groups, layer, depth, value, low,
        high, band_low, band_high (in [0, 1], below 0 only with tasks scored by a correlation;
        null without an interval, and at layers that some task has no score at),
        output_score, output_from, output_is_best, n_tasks, n_sources; of the curve, `lead`,
        `lead_low` and `lead_high`: what the layer that these tasks choose leads the output by on
        a new one (`gain_new_task`). A reading is there once: the last token
        is the same one whatever is dropped in front of it.
    """
    frames = []
    guessed: Any = scores.groupby("task")["chance"].first() if "chance" in scores else {}
    for curves in score_curves(scores):
        pairs = list(zip(curves.task_types, curves.tasks, strict=True))
        names = {"task_type": [t for t, _ in pairs], "task": [t for _, t in pairs]}
        labels = [tuple(names[g][i] for g in groups) for i in range(len(pairs))]
        for group in dict.fromkeys(labels):
            chosen = [i for i, label in enumerate(labels) if label == group]
            values = curves.values if len(chosen) == len(pairs) else curves.values[chosen]
            ends = _intervals(scores, curves, values, chosen)
            best, sources = curves.candidates(chosen), curves.sources_of(chosen)
            lead = None
            if best.output is not None and len(set(sources)) > 1:
                lead = gain_new_task(best.values, best.output_scores, sources)
            place = int(np.argmax(best.values.mean(axis=0)))
            gaps = np.full(len(curves.left_out), np.nan)
            layers = np.append(curves.layers, curves.left_out).astype(np.int64)
            frames.append(
                pd.DataFrame(
                    {
                        "model": curves.model,
                        "revision": curves.revision,
                        "tokens": curves.tokens,
                        "pooling": curves.pooling,
                        "reading": reading(curves.tokens, curves.pooling),
                        "layers": curves.joined,
                        **dict(zip(groups, group, strict=True)),
                        "layer": layers,
                        "depth": layers / max(curves.last_layer, 1),
                        "value": np.append(values.mean(axis=0), gaps),
                        **{name: np.append(end, gaps) for name, end in ends.items()},
                        "output_score": best.output_scores.mean(),
                        "output_from": curves.output_from,
                        "output_is_best": place == best.output,
                        "chance": np.mean([guessed.get(curves.tasks[i], np.nan) for i in chosen]),
                        "n_tasks": len(chosen),
                        "n_sources": len(set(sources)),
                        "lead": lead.value if lead else np.nan,
                        "lead_low": lead.low if lead else np.nan,
                        "lead_high": lead.high if lead else np.nan,
                    }
                ).sort_values("layer")
            )
    table = pd.concat(frames, ignore_index=True)
    keys = ["model", "revision", "reading", "layers", *groups, "layer"]
    return table.drop_duplicates(keys, ignore_index=True)


def _intervals(
    scores: pd.DataFrame, curves: ScoreCurves, values: Floats, chosen: Sequence[int]
) -> dict[str, Floats]:
    n_layers = values.shape[1]
    none = np.full(n_layers, np.nan)
    sources = curves.sources_of(chosen)
    low = high = band_low = band_high = none
    if len(values) == 1:
        low, high = _own_interval(scores, curves, curves.tasks[chosen[0]])
    # A single layer has no differences to speak of.
    elif n_layers > 1 and len(set(sources)) > 1:
        floor = -np.mean([curves.task_types[i] in CORRELATED for i in chosen])
        found = band(within_tasks(values), sources).within(float(floor), 1.0)
        low, high, band_low, band_high = found.low, found.high, found.band_low, found.band_high
    return {"low": low, "high": high, "band_low": band_low, "band_high": band_high}


def _own_interval(scores: pd.DataFrame, curves: ScoreCurves, task: str) -> tuple[Floats, Floats]:
    """The evaluator's interval of a single task's score; NaN where it has none."""
    part = with_output(scores)
    for column in ("model", "revision", "tokens", "pooling"):
        part = part[part[column] == getattr(curves, column)]
    part = part[part["layers"] == curves.joined]
    part = part[part["task"] == task]
    # What the interval of a mean is cannot be told from the ends of several.
    if part["subset"].nunique(dropna=False) > 1:
        none = np.full(len(curves.layers), np.nan)
        return none, none
    ends = part.set_index("layer")[["score_low", "score_high"]].astype(float)
    ends = ends.reindex(curves.layers)
    return ends["score_low"].to_numpy(), ends["score_high"].to_numpy()


def pick_scores(scores: pd.DataFrame, study: Study, *, everything: bool = False) -> pd.DataFrame:
    """The scores that a study is about, of all checkpoints.

    Parameters
    ----------
    everything : bool
        Whether to take layers read together beside single ones, where the study names none.

    Raises
    ------
    LayerwiseError
        If a model, task or token choice asked for is not there, or nothing is left.
    """
    require_columns(scores, SCORE_COLUMNS, "scores")
    scores = _only(with_output(scores), "model", study.models)
    kept = scores[scores["pooling"].isin(several(study.pooling))]
    missing = sorted(set(several(study.pooling)) - set(kept["pooling"]))
    if missing:
        raise LayerwiseError(
            f"There are no scores with the pooling {missing[0]!r}; there are "
            f"{'; '.join(sorted(scores['pooling'].unique())) or 'none'}."
        )
    kept = _only(kept, "layers", None if everything else (ONE,))
    kept = _only(kept, "task", study.tasks)
    kept = _only(kept, "task_type", study.task_types)
    return _only(kept, "tokens", study.tokens)


def pick_metrics(metrics: pd.DataFrame, study: Study, *, everything: bool = False) -> pd.DataFrame:
    """The metrics that a study is about, of all checkpoints and variants.

    Parameters
    ----------
    everything : bool
        Whether to take the parts of blocks beside the layers, where the study names none.

    Raises
    ------
    LayerwiseError
        If a model, corpus, sublayer or token choice asked for is not there.
    """
    require_columns(metrics, METRIC_COLUMNS, "metrics")
    kept = _only(metrics, "model", study.models)
    if "sublayer" not in kept.columns:
        kept = kept.assign(sublayer=BLOCK)
    kept = kept.assign(sublayer=kept["sublayer"].fillna(BLOCK))
    if study.sublayers is not None or not everything:
        kept = _only(kept, "sublayer", study.sublayers or (BLOCK,))
    elif kept["sublayer"].nunique() < 2:
        raise LayerwiseError(
            "These metrics hold no parts of blocks to compare; ask for them in extract.sublayers."
        )
    if study.corpora is not None and OWN_TEXTS not in study.corpora:
        kept = _only(kept, "corpus", study.corpora)
    return _only(kept, "tokens", study.tokens)


def pick_variants(
    metrics: pd.DataFrame, study: Study
) -> tuple[tuple[MetricChoice, ...], pd.DataFrame]:
    """The study's metrics, each in its variant, with their place in the study as `y`."""
    choices = study.curves
    if choices is None:
        one = metrics
        for name in ("protocol", "normalization", "alpha"):
            usual = _usual(metrics, name, several(getattr(study, name)))
            known = one[name].isin(usual)
            one = one[known | one[name].isna()]
        choices = study.variants(sorted(one["metric"].unique()))
    # The variants of one metric that the study itself spreads over a role are one y.
    parts: list[pd.DataFrame] = []
    drawn: dict[int, MetricChoice] = {}
    names = list(dict.fromkeys(_name(m, study) for m in choices))
    for choice in choices:
        place = names.index(_name(choice, study)) + 1
        part, variant = _variant(metrics, choice)
        drawn.setdefault(place, variant)
        parts.append(part.assign(y=place))
    table = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)
    return tuple(drawn[i] for i in sorted(drawn)), table


def _name(choice: MetricChoice, study: Study) -> tuple[object, ...]:
    spread = [n for n in ("protocol", "alpha", "normalization")
              if len(several(getattr(study, n))) > 1]  # fmt: skip
    rest = {n for n in ("protocol", "alpha", "normalization") if n not in spread}
    return choice.metric, *(getattr(choice, n) for n in sorted(rest))


USUAL = {"protocol": "paper", "alpha": 1.0, "normalization": "raw"}


def _usual(metrics: pd.DataFrame, column: str, wanted: Sequence[object]) -> Sequence[object]:
    """What a study means that names no variant: the usual one, or else the only one there is."""
    if wanted:
        return wanted
    there = metrics[column].dropna().unique()
    return [USUAL[column]] if USUAL[column] in there or len(there) != 1 else list(there)


def _variant(metrics: pd.DataFrame, choice: MetricChoice) -> tuple[pd.DataFrame, MetricChoice]:
    names = metrics["metric"].unique()
    if choice.metric not in names:
        raise LayerwiseError(
            f"There is no metric {choice.metric!r}{closest(choice.metric, names)} in these "
            f"tables; there are {', '.join(sorted(names))}."
        )
    mine = metrics[metrics["metric"] == choice.metric]
    kept, found = mine, {}
    for column in ("protocol", "normalization", "alpha"):
        # A metric without an alpha has one curve, whatever alpha the study asks for.
        if column == "alpha" and not kept["alpha"].notna().any():
            continue
        (value,) = _usual(kept, column, several(getattr(choice, column)))
        found[column] = value
        kept = kept[kept[column] == value]
    variant = choice.model_copy(update={"alpha": None, **found})
    if kept.empty:
        raise _other_variants(variant, mine)
    return kept, variant


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def pick_prompts(prompts: pd.DataFrame, study: Study, order: Order) -> Rows:
    """The per-prompt values of the study's one metric.

    Raises
    ------
    LayerwiseError
        If something asked for is not there, or would be mixed.
    """
    needed = [c for c in METRIC_COLUMNS if c != "normalization"]
    require_columns(prompts, [*needed, "prompt_id"], "prompts")
    # Per-prompt values are raw; the common way of picking asks for a normalisation.
    return rows(study, order, metrics=prompts.assign(normalization="raw", stderr=np.nan))


def pick_results(found: pd.DataFrame, study: Study, order: Order) -> pd.DataFrame:
    """The part of a table of associations or choices that a study shows.

    Rows of the protocol ``baseline`` and of the model `POOLED_MODELS` are kept beside.

    Raises
    ------
    LayerwiseError
        If nothing is left, or it is of several checkpoints of a model or several corpora.
    """
    single = found[found["model"] != POOLED_MODELS]
    shown = checkpoints([single], study, order)
    roles_of(study, several=any(len(r) > 1 for r in shown.values()))
    pooled = found["model"] == POOLED_MODELS
    kept = found[pooled | found.index.isin(at_checkpoints(single, shown).index)]
    group = study.task_types[0] if study.task_types and len(study.task_types) == 1 else "all"
    # Where all tasks are of one type, that type has no rows of its own.
    group = group if group in set(kept["task_type"]) else "all"
    kept = kept[kept["task_type"] == group]
    for name in several(study.pooling):
        there = sorted(kept["pooling"].unique())
        if name not in there:
            raise LayerwiseError(
                f"This study asks for the pooling {name!r}, which its "
                f"{KINDS[study.kind].needs[-1]} don't have; they have "
                f"{'; '.join(there) or 'none'}: name it under association.poolings."
            )
    kept = kept[kept["pooling"].isin(several(study.pooling))]
    kept = _only(kept, "tokens", study.tokens)
    base = kept["protocol"] == BASELINE
    variant = ~base & _of_variant(kept, study, kept[~base])
    if study.metrics is not None:
        of_all = kept["metric"].isin([CONSENSUS, NESTED])
        variant = (variant & of_all) | (~base & _named(kept, study, base))
    if study.corpora is not None:
        variant &= kept["corpus"].isin(study.corpora)
    corpora = sorted(kept.loc[variant, "corpus"].unique())
    if len(corpora) != 1:
        raise LayerwiseError(
            f"A study of kind {study.kind} needs one corpus; these tables are on "
            f"{', '.join(corpora) or 'none that fits'}: name one under `corpora`."
        )
    return kept[base | variant].reset_index(drop=True)


def _of_variant(
    kept: pd.DataFrame, asked: Study | MetricChoice, there: pd.DataFrame
) -> pd.Series[bool]:
    """The rows of the variant that is asked for, or of the usual one; some have no alpha."""
    found = pd.Series(True, index=kept.index)
    for name in ("protocol", "normalization", "alpha"):
        usual = _usual(there, name, several(getattr(asked, name)))
        found &= kept[name].isin(usual) | kept[name].isna()
    return found


def _named(kept: pd.DataFrame, study: Study, base: pd.Series[bool]) -> pd.Series[bool]:
    """The rows of the metrics that a study names, each in its variant."""
    curves = study.curves or ()
    names = [m.metric for m in curves]
    _only(kept[~base], "metric", names)
    found = pd.Series(False, index=kept.index)
    for choice in curves:
        if names.count(choice.metric) > 1:
            raise LayerwiseError(
                f"A study of kind {study.kind} has a row for each metric, and this one names "
                f"{choice.metric} in several variants; name one."
            )
        mine = kept["metric"] == choice.metric
        one = mine & _of_variant(kept, choice, kept[~base])
        if not one.any():
            raise _other_variants(choice, kept[mine])
        found |= one
    return found


def _other_variants(choice: MetricChoice, mine: pd.DataFrame) -> LayerwiseError:
    has = mine[["protocol", "alpha", "normalization"]].drop_duplicates()
    asked = choice.model_dump(include={"protocol", "alpha", "normalization"}, exclude_none=True)
    said = ", ".join(f"{name} {_number(value)}" for name, value in asked.items())
    return LayerwiseError(
        f"{choice.metric} is not there with {said or 'its usual variant'}; there is "
        f"{'; '.join('/'.join(map(str, r)) for r in has.to_numpy()[:6])}."
    )


def _only(frame: pd.DataFrame, column: str, wanted: Sequence[str] | None) -> pd.DataFrame:
    if wanted is None:
        return frame
    there = frame[column].unique()
    for name in wanted:
        if name not in there:
            raise LayerwiseError(
                f"This study asks for the {column.replace('_', ' ')} {name!r}"
                f"{closest(name, there)}, which its tables don't have; they have "
                f"{', '.join(sorted(map(str, there))) or 'none'}."
            )
    return frame[frame[column].isin(list(wanted))]
