"""Choose a layer of one model, from its texts alone or from labels.

Without labels, the table says which layer each metric selects. With labels, every layer has a
score, and the best one is compared with the model's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.analysis import measure
from layerwise.association.selection import NO_LABELS, selected_layers
from layerwise.config.tasks import LabelledTask
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.tasks import conll, labelled, probes
from layerwise.tasks.labelled import Found, Labelled
from layerwise.tasks.own_rows import read_rows
from layerwise.tasks.task import normalized

FEWEST_TEXTS = 20
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
    layer : int or None
        None for the model's output.
    sentence : str
        What to do and why, in one line.
    table : DataFrame
        Without labels a row per metric (`layerwise.association.selection.selected_layers`). With
        labels a row per layer, the last of which is the output: layer, score, low, high,
        difference (from the output), difference_low, difference_high, n. The 95% intervals hold
        for all layers together, which corrects for selecting the best one.
    score : str
        What the score is; empty without labels.
    """

    layer: int | None
    sentence: str
    table: pd.DataFrame
    score: str = ""


def sample_texts(texts: Sequence[str], most: int, seed: int = 0) -> list[str]:
    """Distinct texts that are not blank, at most so many, drawn by a seed.

    Raises
    ------
    LayerwiseError
        If there are fewer than `FEWEST_TEXTS`.
    """
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(distinct) < FEWEST_TEXTS:
        raise LayerwiseError(
            f"{len(distinct)} different texts given; choosing a layer takes {FEWEST_TEXTS}, "
            "better some hundreds."
        )
    if len(distinct) <= most:
        return distinct
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:most]
    return [distinct[row] for row in sorted(drawn)]


def choose_by_metrics(
    loaded: LoadedModel, texts: Sequence[str], *, tokens: str, threads: int = 1, seed: int = 0
) -> Choice:
    """Select a layer by each metric that needs no augmented texts.

    Parameters
    ----------
    texts : sequence of str
        From `sample_texts`.
    tokens : str
        Token selection: all, drop_first or drop_sinks.
    """
    from layerwise.metrics.registry import all_metrics, directions

    known = all_metrics()
    wanted = {m: better for m, better in directions().items() if known[m].min_views == 0}
    settings = {"metrics": list(wanted), "tokens": tokens}
    metrics, prompts = measure(loaded, [texts], settings, threads)
    table = selected_layers(
        metrics, wanted, model=loaded.name, tokens=tokens, prompts=prompts, seed=seed
    )
    return Choice(None, NO_LABELS, table)


def read_labels(path: Path, most: int, seed: int = 0) -> tuple[Labelled, int]:
    """Read labelled rows of a file, at most so many drawn by a seed, and count all of them.

    Of files of words and tags, words of whole sentences.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.labelled.read`; for unknown columns; and if a row of each class for
        every split is more than `most`.
    """
    if path.suffix.lower() in TAGGED:
        n = sum(len(sentence.words) for sentence in conll.read(path))
        return labelled.read(LabelledTask(file=str(path), kind="tags", seed=seed, sample=most)), n
    frame = read_rows(path)
    kind: Any = kind_of(frame, str(path))
    data, n = labelled.read(LabelledTask(file=str(path), kind=kind, seed=seed)), len(frame)
    if n <= most:
        return data, n
    rows = _drawn(data, most, seed)
    part = Labelled(
        data.kind,
        [[column[r] for r in rows] for column in data.texts],
        data.labels[rows],
        [data.groups[r] for r in rows],
        seed,
    )
    try:
        if kind == "regression":
            probes.numbers(part.labels.tolist())
        if kind != "pairs":
            part.splits  # noqa: B018  (raises if they cannot be split)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}, {most} of {n} rows drawn (--sample): {error}") from error
    return part, n


def kind_of(frame: pd.DataFrame, where: str) -> str:
    """Kind of task that a table of labels is, by its columns.

    Raises
    ------
    LayerwiseError
        If it has the columns of no kind.
    """
    if {"first", "second", "score"} <= set(frame.columns):
        return "pairs"
    if not {"text", "label"} <= set(frame.columns):
        raise LayerwiseError(
            f"{where} has the columns {', '.join(map(str, frame.columns))}; expected text and "
            "label, or first, second and score."
        )
    labels = frame["label"].dropna()
    numeric = pd.api.types.is_numeric_dtype(labels)
    return "regression" if numeric and labels.nunique() > 20 else "classification"


def _drawn(data: Labelled, most: int, seed: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    order = np.random.default_rng(seed).permutation(len(data.labels))
    first: list[int] = []
    if np.issubdtype(data.labels.dtype, np.integer):
        seen: dict[int, set[Any]] = {int(c): set() for c in np.unique(data.labels)}
        for row in order:
            groups = seen[int(data.labels[row])]
            if len(groups) < probes.FOLDS and data.groups[row] not in groups:
                groups.add(data.groups[row])
                first.append(int(row))
        if len(first) > most:
            raise LayerwiseError(
                f"--sample {most} is too few for {len(seen)} classes; give {len(first)} or more."
            )
    rest = order[~np.isin(order, first)][: most - len(first)]
    return np.sort(np.concatenate([first, rest]).astype(int))


def choose_by_labels(
    loaded: LoadedModel, data: Labelled, *, tokens: str, threads: int = 1
) -> Choice:
    """Score every layer on labelled texts, and choose one."""
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    from layerwise.activations.embedding import embed
    from layerwise.activations.representation import Representation

    texts = data.distinct()
    # As scored and exported. The last layer after the final norm is the output.
    (vectors,) = embed(loaded, texts, [Representation(tokens, "mean", "final_norm")])
    rows = {text: row for row, text in enumerate(texts)}
    columns = [[rows[text] for text in column] for column in data.texts]

    def score(layer: Any) -> Found:
        unit = normalized(layer)
        return labelled.layer_score(data, [unit[column] for column in columns])

    found = Parallel(n_jobs=threads)(delayed(score)(layer) for layer in vectors)
    return choose_by_scores(found, data.kind)


def choose_by_scores(found: Sequence[Found], kind: str) -> Choice:
    """Choose by the scores of layers 0 to L, the last of which is the output.

    Raises
    ------
    LayerwiseError
        If no layer, or the last one, has a score.
    """
    missing = [one for one in found if one.parts is None]
    if missing and (len(missing) == len(found) or found[-1].parts is None):
        raise LayerwiseError(f"These labels give no score: {missing[0].why}.")
    # Each group's contribution times their number has the score as its mean.
    parts = np.stack(
        [
            np.full(len(found[-1].parts), np.nan) if one.parts is None else one.parts  # type: ignore[arg-type]
            for one in found
        ],
        axis=1,
    )
    parts *= len(parts)
    known = np.isfinite(parts).all(axis=0)
    table = pd.DataFrame({"layer": np.arange(len(found))})
    for name, values in (("score", parts), ("difference", parts - parts[:, -1:])):
        over = stats.simultaneous_ci(values[:, known])
        ends = {name: over.estimate, f"{name}_low": over.low, f"{name}_high": over.high}
        for column, estimate in ends.items():
            table.loc[known, column] = estimate
    table = table.rename(columns={"score_low": "low", "score_high": "high"})
    table["n"] = found[-1].n
    layer, sentence = _conclusion(table)
    return Choice(layer, sentence, table, SCORES[kind])


def _conclusion(table: pd.DataFrame) -> tuple[int | None, str]:
    """The layer to use, None for the output, and the reason in one sentence."""
    output, best = table.iloc[-1], table.iloc[int(np.nanargmax(table["score"]))]
    tied = table.loc[table["score"] >= best["score"] - 1e-12, "layer"].tolist()
    score = f"{best['score']:.2f} (95% CI {best['low']:.2f} to {best['high']:.2f})"
    if len(tied) == len(table):
        return (
            None,
            f"All {len(tied)} layers tie: {score}; these labels are too easy to choose by.",
        )
    name = f"Layer {tied[0]}" if len(tied) == 1 else f"Layers {', '.join(map(str, tied))} (tie)"
    if output["layer"] in tied:
        rest = "no other layer scores higher" if len(tied) == 1 else "use the output"
        return None, f"{name}, the output: {score}; {rest}."
    lead = (
        f"{best['difference']:.2f} above the output "
        f"({best['difference_low']:.2f} to {best['difference_high']:.2f})"
    )
    if best["difference_low"] > 0:
        return int(best["layer"]), f"{name}: {score}, {lead}."
    return None, f"{name}: {score}, {lead}, which is not significant; use the output."


def plot(choice: Choice, path: Path) -> None:
    """Draw the score of every layer, or the layers that metrics select, to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes, table = figure.subplots(), choice.table
    if choice.score:
        axes.plot(table["layer"], table["score"], marker="o", markersize=3)
        axes.fill_between(table["layer"], table["low"], table["high"], alpha=0.2)
        axes.axhline(table["score"].iloc[-1], color="0.4", linestyle="dashed", label="output")
        axes.set_ylabel(choice.score)
        axes.legend(frameon=False)
    else:
        colours = np.where(table["unreliable"] == "", "C0", "0.7")
        axes.scatter(table["layer"], table["metric"], color=colours)
    axes.set_xlabel("Layer")
    figure.savefig(path)
