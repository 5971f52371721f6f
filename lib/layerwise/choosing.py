"""Choose a layer of one model, from its texts alone or from labels.

Without labels, the table says which layer each metric selects. With labels, every layer has a
score, and the best one is compared with the model's output.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from layerwise import stats
from layerwise.analysis import measure, score_labels
from layerwise.association.selection import selected_layers
from layerwise.config.tasks import LabelledEntry
from layerwise.corpora.sources import read_rows
from layerwise.errors import LayerwiseError, closest, listed
from layerwise.models.load import LoadedModel
from layerwise.section import parse
from layerwise.tasks import conll, labelled, probes
from layerwise.tasks.labelled import Labels, kind_of_labels
from layerwise.tasks.results import Score

log = logging.getLogger(__name__)

FEWEST_TEXTS = 20
SHARE_OF_NEAR_COPIES = 0.9
WIDER_FOR_NUMBERS = 2.4
"""Factor on the added variance of R², whose penalty varies between splits (docs/statistics.md)."""
TAGGED = (".conll", ".conllu")
SCORES = {
    "classification": "Accuracy of a linear probe",
    "regression": "R² of a linear probe",
    "pairs": "Spearman's correlation with the cosine",
    "tags": "Accuracy of a linear probe on words",
}


@dataclass(frozen=True)
class Choice:
    """A chosen layer.

    Attributes
    ----------
    layer : int
        The last layer is the model's output.
    sentence : str
        What to do and why, in one line.
    tokens : str
        Token selection that the layers were read with.
    score : str
        Name of the score; empty without labels.
    table : DataFrame
        Without labels a row per metric: metric, better, layer, depth, unreliable. With labels a
        row per layer: layer, score, low, high, difference (from the output), difference_low,
        difference_high, n. The 95% intervals hold for all layers together, which corrects for
        selecting the best one; `choose_by_scores` says how.
    """

    layer: int
    sentence: str
    tokens: str
    score: str
    table: pd.DataFrame = field(repr=False)


def sample_texts(texts: Sequence[Any], most: int, seed: int = 0) -> list[Any]:
    """Distinct texts or images, without blank texts, at most so many, drawn by a seed.

    Raises
    ------
    LayerwiseError
        If there are fewer than `FEWEST_TEXTS`.
    """
    known = dict.fromkeys(t for t in texts if not isinstance(t, str) or t.strip())
    distinct = list(known)
    if len(distinct) < FEWEST_TEXTS:
        raise LayerwiseError(
            f"{len(distinct)} different texts given; choosing a layer takes {FEWEST_TEXTS}, "
            "better some hundreds.",
            code="too_few",
        )
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:most]
    return [distinct[row] for row in sorted(drawn)]


def choose(
    loaded: LoadedModel,
    data: Labels | Sequence[Any],
    *,
    tokens: str | None = None,
    threads: int = 1,
    seed: int = 0,
) -> Choice:
    """Choose a layer of a loaded model, by labels if there are any.

    Parameters
    ----------
    data : Labels, or sequence of texts or images
        From `read_labels` or `sample_texts`.
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    """
    tokens = tokens or ("drop_first" if loaded.is_causal() else "all")
    if isinstance(data, Labels):
        if n := count_near_copies(data):
            log.warning(
                "%d of %d rows are near-copies of others, which makes the scores too high and the "
                "intervals too narrow; leave copies out.",
                n,
                len(data.labels),
            )
        scores = score_labels(loaded, data, tokens, threads)
        return choose_by_scores(scores, data.kind, tokens)
    return choose_by_metrics(loaded, data, tokens, threads, seed)


def choose_by_metrics(
    loaded: LoadedModel, texts: Sequence[Any], tokens: str, threads: int = 1, seed: int = 0
) -> Choice:
    """List the layer that each metric selects, of metrics that need no augmented texts.

    The choice is the model's output: no metric was found to select better layers reliably
    (FINDINGS.md).
    """
    from layerwise.metrics.registry import all_metrics, directions

    known = all_metrics()
    wanted = {m: better for m, better in directions().items() if known[m].min_views == 0}
    metrics, prompts = measure(loaded, [texts], threads, metrics=list(wanted), tokens=tokens)
    last = loaded.anatomy.n_layers - 1
    sentence = (
        f"No metric reliably beats the model's output; use layer {last} (the output) unless you "
        "have labels."
    )
    return Choice(last, sentence, tokens, "", selected_layers(metrics, wanted, prompts, seed))


def read_labels(task: LabelledEntry, most: int) -> tuple[Labels, int]:
    """Read labelled rows of a file, at most so many drawn by the task's seed, and count all.

    Of files of words and tags, words of whole sentences.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.labelled.read`; and if a row of each class for every split is more than
        `most`.
    """
    if task.kind == "tags":
        n = sum(len(sentence.words) for sentence in conll.read(Path(str(task.file))))
        return labelled.read(task.model_copy(update={"sample": most})), n
    data = labelled.read(task)
    n = len(data.labels)
    if n <= most:
        return data, n
    rows = _drawn(data, most, task.seed)
    texts = [[column[r] for r in rows] for column in data.texts]
    part = replace(
        data, texts=texts, labels=data.labels[rows], groups=[data.groups[r] for r in rows]
    )
    if task.kind != "pairs":
        part.splits  # noqa: B018  (raises if they cannot be split)
    return part, n


def task_of(
    path: Path, texts: Sequence[str] = (), label: str | None = None, seed: int = 0
) -> LabelledEntry:
    """The task that a file of labels is, by its ending and its columns.

    Parameters
    ----------
    texts : sequence of str
        Column of the texts, or the two columns of pairs; by default ``text``, or ``first`` and
        ``second``.
    label : str, optional
        Column of the label; by default ``label``, or ``score`` of pairs.

    Raises
    ------
    LayerwiseError
        If it lacks a column, or columns are named of a file of tags.
    """
    given = {"file": str(path), "texts": [*texts] or None, "label": label, "seed": seed}
    if path.suffix.lower() in TAGGED:
        return parse(LabelledEntry, {**given, "kind": "tags"}, str(path))
    frame = read_rows(path)
    pairs = len(texts) == 2 or (not texts and {"first", "second"} <= set(frame.columns))
    task = parse(
        LabelledEntry, {**given, "kind": "pairs" if pairs else "classification"}, str(path)
    )
    for name in (*task.text_columns, task.label_column):
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, frame.columns)}, but "
                f"{listed(frame.columns)}; name the columns of the text and the label by --text "
                "and --label.",
                code="unknown_name",
            )
    if pairs:
        return task
    labels = frame[task.label_column].dropna()
    if path.suffix.lower() in (".csv", ".tsv"):  # Their numbers are texts.
        numbers = pd.to_numeric(labels, errors="coerce")
        labels = labels if numbers.isna().any() else numbers
    kind = kind_of_labels(labels.infer_objects())
    return task.model_copy(update={"kind": kind})


def _drawn(data: Labels, most: int, seed: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    rows = pd.DataFrame({"label": data.labels, "group": data.groups})
    rows = rows.iloc[np.random.default_rng(seed).permutation(len(rows))]
    needed = rows.index[:0]
    if np.issubdtype(data.labels.dtype, np.integer):
        needed = rows.drop_duplicates().groupby("label").head(probes.FOLDS).index
    if len(needed) > most:
        raise LayerwiseError(
            f"--sample {most} is too few for {rows['label'].nunique()} classes; give "
            f"{len(needed)} or more.",
            code="too_few",
        )
    rest = rows.index.difference(needed, sort=False)[: most - len(needed)]
    return np.sort(np.concatenate([needed, rest]))


def count_near_copies(data: Labels) -> int:
    """Number of rows that are near-copies of a row in another group, of texts and pairs.

    Near-copies share 90% of their sequences of five characters (cosine of binary counts). Pairs
    are near-copies if both texts are.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    if data.kind == "tags" or not all(isinstance(text, str) for text in data.distinct()):
        return 0
    vectorizer = HashingVectorizer(
        analyzer="char_wb", ngram_range=(5, 5), binary=True, alternate_sign=False, dtype=np.float32
    )
    counts = [vectorizer.transform(column) for column in data.texts]
    groups, n = pd.factorize(pd.Series(data.groups))[0], 0
    for start in range(0, len(groups), 1000):
        part = slice(start, start + 1000)
        alike = [(c[part] @ c.T).toarray() >= SHARE_OF_NEAR_COPIES for c in counts]
        apart = groups[part, None] != groups
        n += int((np.logical_and.reduce(alike) & apart).any(axis=1).sum())
    return n


def choose_by_scores(found: Sequence[Score], kind: str, tokens: str = "all") -> Choice:
    """Choose by the scores of layers 0 to L, the last of which is the output.

    The best layer is selected among L + 1, and an interval that ignores this would be too high.
    The intervals here hold for all layers together: their quantile is that of the largest |t| over
    layers, with the correlation between layers (`layerwise.stats.simultaneous_ci`). With it,
    intervals of accuracies are Wilson's, those of correlations are on Fisher's z scale, and those
    of R² end at 1, so they stay in the range of the score.

    Raises
    ------
    LayerwiseError
        If the last layer has no score.
    """
    known = {layer: one.parts for layer, one in enumerate(found) if one.parts is not None}
    if len(found) - 1 not in known:
        why = next(one.why for one in found if one.parts is None)
        raise LayerwiseError(f"These labels give no score: {why}.", code="undefined")
    # Each group's contribution times their number has the score as its mean.
    parts = np.stack(list(known.values()), axis=1)
    parts *= len(parts)
    widening = _widening(found[-1], kind)
    lead = stats.simultaneous_ci(parts - parts[:, -1:], widening=widening)
    low, high = _interval(stats.simultaneous_ci(parts, widening=widening), kind)
    table = pd.DataFrame(
        {
            "score": parts.mean(axis=0),
            "low": low,
            "high": high,
            "difference": lead.estimate,
            "difference_low": lead.low,
            "difference_high": lead.high,
        },
        index=pd.Index(known, name="layer"),
    )
    table = table.reindex(range(len(found))).reset_index().assign(n=found[-1].n_runs)
    layer, sentence = _conclusion(table, found[-1].baseline or 0.0)
    return Choice(layer, sentence, tokens, SCORES[kind], table)


def _widening(score: Score, kind: str) -> float:
    """Factor on standard errors for probes that share training rows (Nadeau & Bengio 2003)."""
    if not score.n_train:
        return 1.0
    added = score.n_runs / score.n_train
    return float(np.sqrt(1 + added * (WIDER_FOR_NUMBERS if kind == "regression" else 1)))


def _interval(score: stats.Estimate, kind: str) -> tuple[Any, Any]:
    """Ends of simultaneous intervals that stay in the range of the score."""
    from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

    value, stderr = score.estimate, score.stderr
    varies = stderr > 0
    # A layer that has every row right does not vary, and has the quantile of a single interval.
    quantile = ((score.high - value)[varies] / stderr[varies]).max(initial=1.96)
    if kind == "pairs":
        shift = quantile * stderr / (1 - value**2)
        return np.tanh(np.arctanh(value) - shift), np.tanh(np.arctanh(value) + shift)
    if kind == "regression":
        return score.low, np.minimum(score.high, 1)
    n = np.full(len(value), float(score.n))
    n[varies] = (value * (1 - value))[varies] / stderr[varies] ** 2
    low, high = proportion_confint(value * n, n, 2 * norm.sf(quantile), method="wilson")
    return low, high


def _conclusion(table: pd.DataFrame, guessing: float) -> tuple[int, str]:
    """The layer to use, and the reason in one sentence.

    Another layer than the output has to score higher than the output and than guessing.
    """
    output, best = table.iloc[-1], table.iloc[int(np.nanargmax(table["score"]))]
    last = len(table) - 1
    tied = table.loc[table["score"] >= best["score"] - 1e-12, "layer"].tolist()
    score = f"{best['score']:.2f} (95% CI {best['low']:.2f} to {best['high']:.2f})"
    if len(tied) == len(table):
        return (
            last,
            f"All {len(tied)} layers tie: {score}; these labels are too easy to choose by.",
        )
    name = f"Layer {tied[0]}" if len(tied) == 1 else f"Layers {', '.join(map(str, tied))} (tie)"
    if output["layer"] in tied:
        rest = "no other layer scores higher" if len(tied) == 1 else "use the output"
        return last, f"{name}, the output: {score}; {rest}."
    lead = (
        f"{best['difference']:.3f} above the output "
        f"({best['difference_low']:.3f} to {best['difference_high']:.3f})"
    )
    if best["low"] <= guessing:
        return last, f"{name}: {score}, not better than guessing ({guessing:.2f}); use the output."
    if best["difference_low"] > 0:
        return int(best["layer"]), f"{name}: {score}, {lead}."
    return last, f"{name}: {score}, {lead}, which is not significant; use the output."


def plot(choice: Choice, path: Path) -> None:
    """Draw the score of every layer, or the layers that metrics select, to a file."""
    from matplotlib.figure import Figure

    from layerwise.figures import marks, theme
    from layerwise.figures.labels import metric_label

    table = choice.table
    with theme.theme():
        figure = Figure(figsize=(5, 3), layout="constrained")
        ax = figure.subplots()
        if choice.score:
            ink = theme.PALETTE[0]
            marks.line(ax, table, "layer", "score", color=ink, marker="o", markersize=2.2)
            last, best = table.iloc[-1], table.iloc[int(np.nanargmax(table["score"]))]
            ax.plot(last["layer"], last["score"], **marks.output(ink))
            if best["layer"] != last["layer"]:
                ax.plot(best["layer"], best["score"], **marks.best(ink))
            ax.set_ylabel(choice.score.capitalize())
            handles = [("best layer", marks.best()), ("model output", marks.output())]
            ax.legend(handles=[marks.entry(name, **style) for name, style in handles])
        else:
            names = [metric_label(name) for name in table["metric"]]
            marks.dots(ax, table["layer"], names, filled=(table["unreliable"] == "").to_numpy())
            open_dot = marks.dot(color="white", markeredgecolor=theme.INK)
            ax.legend(handles=[marks.entry("unreliable metric", **open_dot)])
        ax.set_xlabel("Layer")
        figure.suptitle("Layer choice", x=0.01, ha="left")
        figure.savefig(path)
