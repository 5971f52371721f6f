"""Choose a layer of one model by labels: the layer of the highest cross-validated score."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from layerwise import stats
from layerwise.analysis import embed_labels, labels_of, prompts_in, score_vectors
from layerwise.config.tasks import TAGGED, LabelledEntry
from layerwise.corpora.prompts import in_folder
from layerwise.corpora.sources import label_column
from layerwise.corpora.sources import read_rows as read_table
from layerwise.errors import LayerwiseError, check_name, closest, listed
from layerwise.models.opening import open_model
from layerwise.models.states import States, is_array
from layerwise.section import parse
from layerwise.tasks import labelled, probes
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labelled import Labels
from layerwise.tasks.labels import KINDS, kind_of_labels, read_tagged

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_rows(
    texts: Any, labels: Sequence[Any] | None, kind: str | None, score: str | None
) -> Labels:
    """Read labelled rows to choose a layer by: with their score.

    Parameters
    ----------
    texts, labels, kind, score
        As for `layerwise.choose`.

    Raises
    ------
    LayerwiseError
        If there are no labels, they are no classes or numbers, or the score is not one of theirs.
    """
    if labels is None and not isinstance(texts, Labels):
        raise LayerwiseError(
            "choose needs labels: no metric of texts alone tells which layer to use. Label 40 "
            "texts or more (--labels FILE, labels=).",
            code="missing",
        )
    rows = texts if labels is None else labels_of(prompts_in(texts), labels, kind)
    measure = score or probes.default(rows.kind, rows.labels)
    check_name(f"score of {rows.kind}", measure, probes.OF_KIND[rows.kind])
    return replace(rows, measure=measure, n_shuffles=0, with_values=True)


def read(
    path: Path,
    texts: Sequence[str] = (),
    label: str | None = None,
    *,
    kind: str | None = None,
    sample: int = 1000,
    seed: int = 0,
) -> tuple[Labels, str]:
    """Read labelled rows of a file or a folder, at most `sample`, and describe them in a line.

    Parameters
    ----------
    path : Path
        A file (`task_of`), or a folder of images or recordings with a subfolder for each class.
    texts, label, kind, seed
        As for `task_of`, of a file.

    Raises
    ------
    LayerwiseError
        As `task_of`, `read_labels` and `read_folder`; and if columns or a kind are named of a
        folder.
    """
    if not path.is_dir():
        rows, n = read_labels(task_of(path, texts, label, seed, kind), sample)
        return rows, rows.described(n)
    if texts or label or kind:
        raise LayerwiseError(
            "--text, --label and --kind are for the columns of a file, and a folder has none.",
            code="conflict",
        )
    rows, n = read_folder(path, sample, seed)
    return rows, rows.described(n, "labelled files")


def task_of(
    path: Path,
    texts: Sequence[str] = (),
    label: str | None = None,
    seed: int = 0,
    kind: str | None = None,
) -> LabelledEntry:
    """The task that a file of labels is, by its ending and its columns.

    Parameters
    ----------
    texts : sequence of str
        Column of the texts, or the two columns of pairs; by default ``text``, or ``first`` and
        ``second``.
    label : str, optional
        Column of the label; by default ``label``, or ``score`` of pairs.
    kind : {'classification', 'regression'}, optional
        By default as `layerwise.tasks.labels.kind_of_labels`.

    Raises
    ------
    LayerwiseError
        If it lacks a column, or columns are named of a file of tags.
    """
    if kind is not None:
        check_name("kind", kind, KINDS)
    is_tagged = path.suffix.lower() in TAGGED
    frame = pd.DataFrame() if is_tagged else read_table(path)
    has_pairs = len(texts) == 2 or (not texts and {"first", "second"} <= set(frame.columns))
    only = "tags" if is_tagged else "pairs" if has_pairs else None
    if only and kind:
        raise LayerwiseError(
            f"{path} has {only}, and --kind is for a label of each text; remove it.",
            code="conflict",
        )
    columns = {"texts": [*texts] or None, "label": label}
    settings = {"file": str(path), "seed": seed, "kind": only or kind or KINDS[0], **columns}
    task = parse(LabelledEntry, settings, str(path))
    if is_tagged:
        return task
    for name in (*task.text_columns, task.label_column):
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, frame.columns)}, but "
                f"{listed(frame.columns)}; name the columns of the text and the label by --text "
                "and --label.",
                code="unknown_name",
            )
    if only or kind:
        return task
    in_text = path.suffix.lower() in (".csv", ".tsv")  # Their numbers are texts.
    kind = kind_of_labels(label_column(path, frame, task.label_column), in_text=in_text)
    return task.model_copy(update={"kind": kind})


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
        n = sum(len(sentence.words) for sentence in read_tagged(Path(str(task.file))))
        return labelled.read(task.model_copy(update={"sample": most})), n
    data = labelled.read(task)
    return sample_labels(data, most), len(data.labels)


def sample_labels(data: Labels, most: int) -> Labels:
    """At most so many rows, drawn by their seed."""
    sample = data.rows(_drawn(data, most))
    sample.check_splits()
    return sample


def read_folder(folder: Path, most: int, seed: int = 0) -> tuple[Labels, int]:
    """Read images or recordings whose subfolders are their classes, as `read_labels`.

    Files that are not drawn are not read.

    Raises
    ------
    LayerwiseError
        As `read_labels`; and if a file is in no subfolder.
    """
    files = in_folder(folder)
    if None in files.labels:
        raise LayerwiseError(
            f"{folder}: {files.ids[files.labels.index(None)]} is in no subfolder; the subfolder "
            "is the label.",
            code="too_few",
        )
    numbers = probes.classes(files.labels)
    rows = _drawn(Labels("classification", [files.ids], numbers, files.ids, seed), most)
    labels = [files.labels[row] for row in rows]
    data = labels_of([files.read(row) for row in rows], labels, "classification")
    data = replace(data, seed=seed)
    data.check_splits()
    return data, len(files.ids)


def _drawn(data: Labels, most: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    if len(data.labels) <= most:
        return np.arange(len(data.labels))
    rows = pd.DataFrame({"label": data.labels, "group": data.groups})
    rows = rows.iloc[np.random.default_rng(data.seed).permutation(len(rows))]
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


# Variance added for the training rows that probes share, in units of Nadeau and Bengio's (2003),
# and more for each tested row of scores that change much with the penalty, which varies between
# splits whatever the rows. Simulated (docs/statistics.md).
ADDED_VARIANCE, ADDED_IF_VARYING, ADDED_PER_ROW = 0.8, 1.6, 0.0044
VARYING = ("r2", "balanced_accuracy", "macro_f1")
OF_WHAT = {"pairs": "with the cosine", "tags": "of a linear probe on words"}


def compare(scores: Sequence[Score], measure: str) -> pd.DataFrame:
    """Compare layers 0 to L with the last one, which is the output.

    The best layer is selected among L + 1, and an interval that ignores this would be too high.
    The intervals of scores and differences hold for all layers together: their quantile is that of
    the largest |t| over layers, with the correlation between layers
    (`layerwise.stats.simultaneous_ci`). With it, intervals of scores from 0 to 1 are Wilson's,
    those of correlations are on Fisher's z scale, and those of R² end at 1, so they stay in the
    range of the score.

    Parameters
    ----------
    measure : str
        Name of the score, of `layerwise.tasks.probes`.

    Returns
    -------
    DataFrame
        As `Choice.table`, and the score of guessing as its attribute ``guessing``. A layer without
        a score has a row of missing values.

    Raises
    ------
    LayerwiseError
        If the last layer has no score.
    """
    scored = {layer: one for layer, one in enumerate(scores) if one.values is not None}
    if len(scores) - 1 not in scored:
        why = next(one.why for one in scores if one.values is None)
        raise LayerwiseError(f"These labels give no score: {why}.", code="undefined")
    values = np.stack([np.asarray(one.values) for one in scored.values()], axis=1)
    factor = widening(scores[-1], measure)
    table = pd.DataFrame({"score": values.mean(axis=0)}, index=pd.Index(scored, name="layer"))
    ends = stats.simultaneous_ci(values, widening=factor)
    table["low"], table["high"] = interval(ends, measure)
    lead = stats.simultaneous_ci(values - values[:, [-1]], widening=factor)
    table["difference"], table["difference_low"], table["difference_high"] = lead[:3]
    table = table.reindex(range(len(scores))).reset_index().assign(n=scores[-1].n_runs)
    table["compute_saved"] = 1 - table["layer"] / max(len(scores) - 1, 1)
    table.attrs["guessing"] = scores[-1].baseline or 0.0
    return table


def answer(table: pd.DataFrame, rows: Labels, within: float | None, **reading: Any) -> Choice:
    """Answer with the best layer, or the earliest one that is not much worse than the output.

    Parameters
    ----------
    table : DataFrame
        Of `compare`.
    within : float, optional
        Points that the layer may lose against the output.
    **reading
        Tokens, pooling and input of the model, as `Choice` has them.
    """
    last = len(table) - 1
    if within is None:
        layer = int(np.nanargmax(table["difference"]))
        # Rounding is no lead.
        layer = layer if table["difference"][layer] > 1e-12 else last
        alone = "and no other layer scores higher"
        alone += "; these labels are too easy" if np.ptp(table["score"]) == 0 else ""
    else:
        layer = int(np.argmax(table["difference"] >= -within / 100))
        alone = f"and no earlier layer scores at most {within:g} points below it"
    row: Any = table.loc[layer].to_dict()
    reason = f"It scores {row['score']:.2f} (95% CI {row['low']:.2f} to {row['high']:.2f})"
    guessing = table.attrs["guessing"]
    if row["low"] <= guessing:
        reason += f", not significantly better than guessing ({guessing:.2f})"
    if layer == last:
        reason += f", {alone}."
    else:
        lead = [100 * row[f"difference{end}"] for end in ("", "_low", "_high")]
        certain = "significant" if lead[1] > 0 or lead[2] < 0 else "not significant"
        reason += (
            f". Difference from the output: {lead[0]:z.1f} points (95% CI {lead[1]:z.1f} to "
            f"{lead[2]:z.1f}), {certain}. The blocks after it, {row['compute_saved']:.0%} of the "
            "model's, need not run."
        )
    what = f"the output (layer {last})" if layer == last else f"layer {layer} of {last}"
    name = f"{probes.NAMES[rows.measure]} {OF_WHAT.get(rows.kind, 'of a linear probe')}"
    return Choice(
        layer,
        f"Use {what}.",
        reason + _why_measure(rows),
        score=name,
        table=table,
        rows=f"Read {rows.described(len(rows.labels))}.",
        **reading,
    )


def _why_measure(rows: Labels) -> str:
    """Sentence on classes of which one has most rows."""
    if rows.measure != probes.default(rows.kind, rows.labels) or rows.measure != "auroc":
        return ""
    share = np.bincount(rows.labels).max() / len(rows.labels)
    return f" Scored by AUROC: guessing the largest class has an accuracy of {share:.2f}."


def widening(score: Score, measure: str) -> float:
    """Factor on standard errors for probes that share training rows."""
    if not score.n_train:
        return 1.0
    varying = ADDED_IF_VARYING + ADDED_PER_ROW * score.n_runs
    added = varying if measure in VARYING else ADDED_VARIANCE
    return float(np.sqrt(1 + added * score.n_runs / score.n_train))


def interval(score: stats.Estimate, measure: str) -> tuple[Any, Any]:
    """Ends of simultaneous intervals that stay in the range of the score."""
    from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

    value, stderr = score.estimate, score.stderr
    varies = stderr > 0
    # A layer that has every row right does not vary, and has the quantile of a single interval.
    quantile = ((score.high - value)[varies] / stderr[varies]).max(initial=1.96)
    if measure == "spearman":
        # A perfect correlation is infinite on Fisher's scale.
        shift = quantile * stderr
        low, high = np.maximum(value - shift, -1), np.minimum(value + shift, 1)
        other = np.abs(value) < 1 - 1e-9
        z, shift = np.arctanh(value[other]), shift[other] / (1 - value[other] ** 2)
        low[other], high[other] = np.tanh(z - shift), np.tanh(z + shift)
        return low, high
    if measure == "r2":
        return score.low, np.minimum(score.high, 1)
    value = value.clip(0, 1)
    n = np.full(len(value), float(score.n))
    n[varies] = (value * (1 - value))[varies] / stderr[varies] ** 2
    low, high = proportion_confint(value * n, n, 2 * norm.sf(quantile), method="wilson")
    return low, high


@dataclass(frozen=True)
class Choice:
    """A chosen layer.

    Attributes
    ----------
    layer : int
        The last layer is the model's output.
    advice : str
        The layer to use, in one sentence.
    reason : str
        Its score and its difference from the output, with 95% intervals, and what it saves.
    score : str
        Name of the score.
    table : DataFrame
        A row per layer: layer, score, low, high, difference (from the output), difference_low,
        difference_high, n, compute_saved (share of the model's blocks after the layer; all count
        the same). The 95% intervals of scores and of differences hold for all layers together,
        which corrects for selecting one (`compare`).
    rows : str
        The labelled rows that were read: their number, kind, and classes with their rows.
    tokens : str
        Token selection that the layers were read with.
    pooling : str
        Pooling that the layers were read with.
    takes : {'text', 'image', 'recording'}
        What the model takes.
    """

    layer: int
    advice: str
    reason: str
    score: str
    table: pd.DataFrame = field(repr=False)
    rows: str = ""
    tokens: str = "all"
    pooling: str = "mean"
    takes: str = "text"

    @property
    def sentence(self) -> str:
        """The advice and its reason."""
        return f"{self.advice} {self.reason}"

    def _repr_html_(self) -> str:
        """The rows read, the advice, its reason and the table, for notebooks."""
        table = self.table.round(3).to_html(index=False, na_rep="–")
        rows, advice, reason = map(html.escape, (self.rows, self.advice, self.reason))
        return f"<p>{rows} <b>{advice}</b> {reason}</p>{table}"

    def export_command(self, model: str, **options: object) -> str:
        """The shell command that saves a model that gives the vectors that were scored.

        Parameters
        ----------
        **options
            Further options of ``layerwise export``, such as ``revision``.
        """
        name = short_name(model)
        settings = {
            "layer": self.layer,
            "tokens": self.tokens,
            "pooling": self.pooling,
            **options,
        }
        folder = f"{name}-{self.layer}"
        words = ["layerwise", "export", model, folder]
        words += [
            str(x)
            for key, value in settings.items()
            for x in (f"--{key.replace('_', '-')}", value)
        ]
        return shlex.join(words)


def short_name(model: str) -> str:
    """Name of a model for folders and figures: of its package, or the last part."""
    package = re.fullmatch(r"package:([^/#]+)[^#]*", model)
    last = re.split(r"[/#]", model.rstrip("/"))[-1].removesuffix(".gguf")
    return package[1] if package else last


def plot(choice: Choice, path: Path, model: str = "model") -> Figure:
    """Draw the score of every layer as a workflow does.

    The band is the interval of the difference to the output, whose score is the dotted line.
    """
    from layerwise.config.studies import Study
    from layerwise.figures import panels
    from layerwise.figures.render import draw

    table = choice.table
    depth = table["layer"] / max(len(table) - 1, 1)
    output = table["score"].iloc[-1]
    about: dict[str, Any] = {"model": model, "revision": "", "tokens": choice.tokens}
    about |= {"pooling": "mean", "task": choice.score, "task_type": "", "subset": "default"}
    about |= dict.fromkeys(("score_low", "score_high"), float("nan"))
    scores = table[["layer"]].assign(**about, depth=depth, main_score=table["score"])
    study = Study(kind="score_by_depth", title=choice.advice.rstrip("."))
    figure = draw(study, {"scores": scores}).figure
    (ax,) = figure.axes
    ax.set_ylabel(f"{choice.score[0].upper()}{choice.score[1:]}\n(× 100; 95% CI against output)")
    ends = 100 * (output + table["difference_low"]), 100 * (output + table["difference_high"])
    ax.fill_between(depth, *ends, color=panels.PALETTE[0], alpha=0.15, linewidth=0)
    ax.axhline(100 * output, color=panels.GREY, lw=0.8, linestyle="dotted")
    ax.axvline(depth[choice.layer], color=panels.GREY, lw=0.8)
    figure.savefig(path, dpi=panels.DPI)
    return figure


__all__ = ["Choice", "choose"]


def choose(
    model: Any,
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    tokenizer: Any = None,
    *,
    tokens: str | None = None,
    within: float | None = None,
    score: str | None = None,
    kind: str | None = None,
    part: Mapping[str, Any] | None = None,
    threads: int = 1,
    **opening: Any,
) -> Choice:
    """Recommend the layer of the highest score on labels.

    Parameters
    ----------
    model, labels, tokenizer, threads
        As for `layerwise.analyse`.
    texts
        A list of texts, of images or of recordings, a `datasets.Dataset` or a data frame with the
        column ``text``; or labelled rows of a file (`layerwise.choosing.read`).
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    within : float, optional
        Recommend the earliest layer whose score is at most so many points (hundredths of the
        score) below the output's.
    score : str, optional
        Score of the layers, of `layerwise.tasks.probes`; by default accuracy, R² or Spearman's
        correlation, and AUROC if 80% of the rows are of one class.
    kind : {'classification', 'regression'}, optional
        Kind of the labels; by default classes, unless they are more than 20 numbers that are not
        whole or hardly repeat.
    part : mapping, optional
        Part of each text whose tokens count, as ``scoring.part`` of a config: ``after`` and
        ``before`` (markers), ``last`` (so many tokens).
    **opening
        Options of `layerwise.models.opening.open_model`: max_length, revision, device, dtype.

    Returns
    -------
    Choice
        Its `layer`, `advice`, `reason` and a `table` of every layer.

    Examples
    --------
    >>> import layerwise as lw
    >>> choice = lw.choose(model, texts, labels, tokenizer)
    >>> list(choice.table.columns[:4])
    ['layer', 'score', 'low', 'high']

    Raises
    ------
    LayerwiseError
        If there are no labels, the texts or the model cannot be read, or the output has no score.
    """
    rows = read_rows(texts, labels, kind, score)
    model = States(model, rows.texts[0]) if is_array(model) else model
    with open_model(model, tokenizer, **opening) as loaded:
        tokens = tokens or ("drop_first" if loaded.is_causal else "all")
        vectors = embed_labels(loaded, rows, tokens, part)
        reading = {"tokens": tokens, "pooling": loaded.embedder.pooling}
    scores = score_vectors(rows, vectors, threads)
    table = compare(scores, rows.measure)
    return answer(table, rows, within, takes=loaded.reader.takes, **reading)
