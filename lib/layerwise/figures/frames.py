"""The rows of the tidy tables that a study draws, chosen and averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerwise.association import nulls
from layerwise.association.curves import (
    BLOCK,
    METRIC_COLUMNS,
    Floats,
    ScoreCurves,
    of_blocks,
    of_readouts,
    require_columns,
    score_curves,
)
from layerwise.association.revisions import last_revision, step_of
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.settings import MetricChoice, StudySettings


def mean_scores(scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """Mean task score by layer, with an interval in which differences between tasks don't count.

    The interval is a percentile bootstrap over tasks of the scores from which each task's own
    mean over layers has been taken off (the within-subject interval of Cousineau 2005): tasks lie
    far apart in level, and what the reader compares is layers. Taking the means off narrows what
    is left by sqrt((J - 1) / J) with J layers; the deviations from a layer's mean are widened by
    as much (Morey 2008). With a single task, the evaluator's own interval is given, where it has
    one and the task has a single subset.

    Returns
    -------
    DataFrame
        model, revision, tokens, layer, depth, score, low, high (all in [0, 1]; null without an
        interval), n_tasks; ordered by model, tokens, layer.
    """
    kept = pick_scores(scores, study)
    frames = []
    for curves in score_curves(kept):
        values = curves.values
        low = high = np.full(values.shape[1], np.nan)
        n_layers = values.shape[1]
        # A single layer has no differences to speak of.
        if len(curves.tasks) > 1 and study.resamples and n_layers > 1:
            rng = nulls.generator(study.seed, curves.model, curves.revision, curves.tokens)
            weights = nulls.task_resamples(len(curves.tasks), study.resamples, rng)
            mean = values.mean(axis=0)
            apart = values - mean
            apart -= apart.mean(axis=1, keepdims=True)
            within = mean + apart * np.sqrt(n_layers / (n_layers - 1))
            low, high = nulls.interval((weights @ within).T)
        elif len(curves.tasks) == 1:
            low, high = _own_interval(kept, curves)
        frames.append(
            pd.DataFrame(
                {
                    "model": curves.model,
                    "revision": curves.revision,
                    "tokens": curves.tokens,
                    "layer": curves.layers,
                    "depth": curves.layers / max(curves.last_layer, 1),
                    "score": values.mean(axis=0),
                    "low": low,
                    "high": high,
                    "n_tasks": len(curves.tasks),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _own_interval(scores: pd.DataFrame, curves: ScoreCurves) -> tuple[Floats, Floats]:
    """The evaluator's interval of a single task's score; NaN where it has none."""
    part = scores[
        (scores["model"] == curves.model)
        & (scores["revision"] == curves.revision)
        & (scores["tokens"] == curves.tokens)
    ]
    # What the interval of a mean is cannot be told from the ends of several.
    if part["subset"].nunique(dropna=False) > 1:
        none = np.full(len(curves.layers), np.nan)
        return none, none
    ends = part.set_index("layer")[["score_low", "score_high"]].astype(float)
    ends = ends.reindex(curves.layers)
    return ends["score_low"].to_numpy(), ends["score_high"].to_numpy()


def pick_scores(scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """The scores that a study is about.

    Raises
    ------
    LayerwiseError
        If a model, task or token choice asked for is not there, or nothing is left.
    """
    require_columns(scores, ("model", "revision", "task", "tokens", "pooling"), "scores")
    scores = of_readouts(scores)
    if not isinstance(study.pooling, str):
        raise LayerwiseError(
            f"A study of kind {study.kind} shows one pooling, this one names "
            f"{', '.join(study.pooling)}; score_by_depth shows several."
        )
    kept = scores[scores["pooling"] == study.pooling]
    if kept.empty:
        raise LayerwiseError(
            f"There are no scores with the pooling {study.pooling!r}; there are "
            f"{'; '.join(sorted(scores['pooling'].unique())) or 'none'}."
        )
    kept = _only(kept, "model", study.models)
    kept = _only(kept, "task", study.tasks)
    kept = _only(kept, "task_type", study.task_types)
    kept = _only(kept, "tokens", study.tokens)
    return _revisions(kept, study.revisions)


def pick_metrics(
    metrics: pd.DataFrame, study: StudySettings, *, all_revisions: bool = False
) -> pd.DataFrame:
    """The metrics that a study is about, each variant as one `curve` (its index in the study).

    A corpus must be named where a comparison by model would find several. Only the layers
    themselves are taken, unless the study asks for parts of blocks.

    Raises
    ------
    LayerwiseError
        If a model, corpus, metric, sublayer or token choice asked for is not there.
    """
    require_columns(metrics, METRIC_COLUMNS, "metrics")
    kept = _only(metrics, "model", study.models)
    kept = _parts(kept, study)
    kept = _only(kept, "corpus", study.corpora)
    if study.own_texts:
        kept = kept[kept["corpus"].isin(list(study.own_texts))]
    kept = _only(kept, "tokens", study.tokens)
    if not (all_revisions and study.revisions is None):
        kept = _revisions(kept, study.revisions)
    one_corpus = study.compare != "corpus" and not study.own_texts
    if one_corpus and kept["corpus"].nunique() > 1:
        raise LayerwiseError(
            f"The metrics of this study are on several corpora "
            f"({', '.join(sorted(kept['corpus'].unique()))}); name one under `corpora`, or "
            "compare by corpus."
        )
    return pd.concat(
        [_variant(kept, choice).assign(curve=i) for i, choice in enumerate(study.curves)],
        ignore_index=True,
    )


def with_steps(metrics: pd.DataFrame) -> pd.DataFrame:
    """Add the training step to rows whose revision names one, of models with two or more.

    Raises
    ------
    LayerwiseError
        If there is no such model.
    """
    step = metrics["revision"].map(step_of)
    table = metrics[step.notna()].assign(step=step[step.notna()].astype(int))
    several = table.groupby("model")["step"].nunique()
    table = table[table["model"].isin(several[several > 1].index)]
    if table.empty:
        raise LayerwiseError(
            "A study over checkpoints needs a model with two or more revisions named by their "
            f"step, such as step512; these tables have "
            f"{', '.join(sorted(metrics['revision'].unique())[:6])}."
        )
    return table.reset_index(drop=True)


def metrics_there(metrics: pd.DataFrame, study: StudySettings) -> list[str]:
    """Names of the metrics that have the study's variant, in alphabetical order."""
    metrics = of_blocks(metrics)
    kept = metrics[
        (metrics["protocol"] == study.protocol)
        & (metrics["normalization"] == study.normalization)
        & (metrics["alpha"].isna() | (metrics["alpha"] == study.alpha))
    ]
    return sorted(kept["metric"].unique())


def pick_prompts(prompts: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """The per-prompt values of the study's first metric.

    Raises
    ------
    LayerwiseError
        If a model, corpus, metric or token choice asked for is not there, or several corpora are
        and the study names none.
    """
    needed = [c for c in METRIC_COLUMNS if c != "normalization"]
    require_columns(prompts, [*needed, "prompt_id"], "prompts")
    # Per-prompt values are raw; the common way of picking asks for a normalisation.
    return pick_metrics(prompts.assign(normalization="raw"), study)


def _parts(metrics: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """The layers themselves, or the parts of blocks that a study asks for."""
    if study.compare != "sublayer" and study.sublayers is None:
        return of_blocks(metrics)
    if study.compare != "sublayer" and len(study.sublayers or ()) > 1:
        raise LayerwiseError(
            f"This study names {len(study.sublayers or ())} sublayers; name one, or say "
            "`compare: sublayer` in a study of kind metrics_by_depth."
        )
    if "sublayer" not in metrics.columns:
        metrics = metrics.assign(sublayer=BLOCK)
    if study.compare == "sublayer" and metrics["model"].nunique() > 1:
        raise LayerwiseError(
            f"A comparison of sublayers is of one model, these metrics are of "
            f"{', '.join(sorted(metrics['model'].unique()))}; name one under `models`."
        )
    kept = _only(metrics, "sublayer", study.sublayers)
    if study.compare == "sublayer" and kept["sublayer"].nunique() < 2:
        raise LayerwiseError(
            "These metrics hold no parts of blocks to compare; ask for them in extract.sublayers."
        )
    return kept


def _variant(metrics: pd.DataFrame, choice: MetricChoice) -> pd.DataFrame:
    names = metrics["metric"].unique()
    if choice.metric not in names:
        raise LayerwiseError(
            f"There is no metric {choice.metric!r}{closest(choice.metric, names)} in these "
            f"tables; there are {', '.join(sorted(names))}."
        )
    kept = metrics[
        (metrics["metric"] == choice.metric)
        & (metrics["protocol"] == choice.protocol)
        & (metrics["normalization"] == choice.normalization)
    ]
    # A metric without an alpha has one curve, whatever alpha the study asks for.
    if kept["alpha"].notna().any():
        kept = kept[np.isclose(kept["alpha"], np.nan if choice.alpha is None else choice.alpha)]
    if kept.empty:
        has = metrics.loc[
            metrics["metric"] == choice.metric, ["protocol", "alpha", "normalization"]
        ].drop_duplicates()
        raise LayerwiseError(
            f"{choice.metric} is not there with protocol {choice.protocol}, alpha {choice.alpha}, "
            f"normalization {choice.normalization}; there is "
            f"{'; '.join('/'.join(map(str, r)) for r in has.to_numpy()[:6])}."
        )
    return kept


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


def _revisions(frame: pd.DataFrame, wanted: Sequence[str] | None) -> pd.DataFrame:
    if wanted is not None:
        return _only(frame, "revision", wanted)
    last = frame.groupby("model")["revision"].agg(lambda r: last_revision(r.unique()))
    return frame[frame["revision"] == frame["model"].map(last)]
