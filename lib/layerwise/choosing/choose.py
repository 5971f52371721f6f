"""Choose a layer of one model from plain texts, or from labelled ones.

Without labels: one pass over the texts, the layer that each metric picks, how often random halves
of the texts pick the same, and what such picks have lost in models whose scores are known
(``record.csv``, made by ``scripts/compare_rules.py``). A layer other than the model's output is
recommended only if both hold: the texts agree on it, and such picks have been told to lose less
than the output in other models.

With labels: the score of every layer on them (`layerwise.tasks.labelled`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise import probes
from layerwise.association import regret
from layerwise.association.choice import CONSENSUS
from layerwise.association.recommendation import recommend
from layerwise.association.regret import LAST
from layerwise.config.own_tasks import LABELS, TEXTS, OwnTask
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.tasks import labelled
from layerwise.tasks.labelled import Found, Labelled
from layerwise.tasks.layout import Reading

log = logging.getLogger(__name__)

FEWEST, FEW = 20, 100
"""Texts below which nothing is computed, and below which picks are called weak."""
STEADY = 0.8
"""Share of random halves that have to pick near the layer for the texts to agree on it."""
RECORD = Path(__file__).with_name("record.csv")


@dataclass(frozen=True)
class Choice:
    """What the metrics say of a model, and what to make of it.

    Attributes
    ----------
    picks : DataFrame
        metric, better, layer, depth, refused (why a pick has no say), near (the share of random
        halves of the texts that pick a layer within a tenth of the depth).
    consensus, last_layer : int
    agreement : float
        Share of the metrics whose pick lies within a tenth of the depth of the consensus.
    n_texts : int
    record : DataFrame
        How each rule has done in other models (`layerwise.association.regret.compare`).
    layer : int or None
        The layer to use; None for the model's output.
    why : str
        What speaks against another layer than the output; empty if one is recommended.
    """

    picks: pd.DataFrame
    consensus: int
    last_layer: int
    agreement: float
    tokens: str
    n_texts: int
    record: pd.DataFrame
    layer: int | None
    why: str


def sample(texts: Sequence[str], most: int, seed: int = 0) -> list[str]:
    """The distinct texts that are not blank, or as many of them drawn by a seed.

    Raises
    ------
    LayerwiseError
        If there are fewer than `FEWEST`.
    """
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(distinct) < FEWEST:
        raise LayerwiseError(
            f"{len(distinct)} different texts came; a layer can be chosen from {FEWEST} or more, "
            "better some hundreds."
        )
    if len(distinct) <= most:
        return distinct
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:most]
    return [distinct[place] for place in sorted(drawn)]


def choose(
    loaded: LoadedModel, texts: Sequence[str], *, tokens: str, threads: int = 1, seed: int = 0
) -> Choice:
    """Choose a layer without labels.

    Parameters
    ----------
    loaded : LoadedModel
    texts : sequence of str
        Of `sample`.
    tokens : {'all', 'drop_first', 'drop_sinks'}
        Which tokens count.

    Raises
    ------
    LayerwiseError
        If the texts give too few metrics.
    """
    from layerwise.activations.extract import extract
    from layerwise.activations.layout import Activations
    from layerwise.association.stability import stability
    from layerwise.config.extraction import ExtractSettings
    from layerwise.config.metrics import MetricsSettings
    from layerwise.metrics.registry import directions
    from layerwise.metrics.table import compute

    wanted = {metric: directions()[metric] for metric in without_views()}
    kept = MetricsSettings().model_copy(update={"metrics": tuple(wanted), "alphas": (1.0,)})
    read = ExtractSettings(tokens=(tokens,), protocols=("paper",), keep_states=0)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="layerwise-") as folder:
        path = Path(folder) / "texts.h5"
        extract(
            loaded, corpus="texts", prompts=[str(n) for n in range(len(texts))], views=[texts],
            settings=read, target=path, attributes={},
        )  # fmt: skip
        with Activations(path) as activations:
            metrics, _ = compute(activations, kept, threads)
            checked = stability(activations, kept, wanted, seed=seed)
    picks, chosen = recommend(metrics, wanted, model=loaded.name, tokens=tokens, stability=checked)
    near = checked.set_index("metric")["near"]
    picks["near"] = [float(near.get(metric, np.nan)) for metric in picks["metric"]]
    table = record_without(loaded.weights, loaded.name)
    agreement = float(chosen["agreement"])  # type: ignore[arg-type]
    why = _against(picks, agreement, table, len(texts))
    consensus, last = int(chosen["layer"]), int(chosen["last_layer"])  # type: ignore[call-overload]
    return Choice(
        picks, consensus, last, agreement, tokens, len(texts), table,
        None if why else consensus, why,
    )  # fmt: skip


def without_views() -> list[str]:
    """The metrics with a direction that need no augmented copies of the texts."""
    from layerwise.metrics.registry import all_metrics, directions

    known = all_metrics()
    return [m for m in directions() if known[m].min_views == 0]


def record_without(weights: str, name: str) -> pd.DataFrame:
    """How each rule has done on all tasks of the models of known scores, but for this one.

    It is told by its weights or, as weights of another dtype have another hash and those behind
    published scores none that is known, by the last part of its name.
    """
    found = pd.read_csv(RECORD, dtype={"weights": str}, keep_default_na=False)
    found["regret"] = found["regret"].astype(float)
    same = found["model"].str.casefold() == Path(name).name.casefold()
    others = found[~same & (found["weights"] != weights[:12])]
    return regret.compare(others)


def _against(picks: pd.DataFrame, agreement: float, record: pd.DataFrame, n_texts: int) -> str:
    """What speaks against a layer other than the output; empty for nothing."""
    said = []
    good = picks[picks["refused"] == ""]
    steady = float(good["near"].median()) if len(good) else 0.0
    if n_texts < FEW:
        said.append(f"{n_texts} texts are few")
    if agreement < 0.5:
        said.append(f"only {agreement:.0%} of the metrics pick a layer near the others'")
    if not steady >= STEADY:
        said.append(f"only {steady:.0%} of random halves of the texts pick near it")
    mine = record[record["rule"] == CONSENSUS]
    told = len(mine) and mine[f"less_{LAST}"].iloc[0] > 0
    if not told or mine[f"corrected_{LAST}"].iloc[0] > 0.05:
        n = int(mine["n_models"].iloc[0]) if len(mine) else 0
        said.append(
            f"in {n} models of known scores such picks could not be told to lose less than the "
            "output"
        )
    return "; ".join(said)


# With labels


@dataclass(frozen=True)
class LabelledChoice:
    """What labels say of each layer.

    Attributes
    ----------
    found : list of Found
        One a layer, 0 to L.
    output : Found
        Of the model's own output.
    layer : int or None
        The layer to use; None for the output.
    """

    found: list[Found]
    output: Found
    n_rows: int
    score: str

    @property
    def best(self) -> int:
        """The layer of the highest score.

        Raises
        ------
        LayerwiseError
            If none has a score.
        """
        if all(f.score is None for f in self.found):
            raise LayerwiseError(f"No layer has a score on these labels: {self.found[0].why}.")
        return int(np.nanargmax([np.nan if f.score is None else f.score for f in self.found]))

    @property
    def layer(self) -> int | None:
        top = self.found[self.best]
        if top.score is None or self.output.score is None:
            return self.best if top.score is not None else None
        told = top.low is not None and self.output.score < top.low
        return self.best if told else None


SCORES = {
    "classification": "accuracy of a linear probe", "regression": "R² of a linear probe",
    "pairs": "Spearman's correlation with the cosine", "preference": "accuracy of a linear probe",
}  # fmt: skip


def kind_of(frame: pd.DataFrame, where: str) -> str:
    """What a table of labels is, by its columns.

    Raises
    ------
    LayerwiseError
        If it has the columns of no kind.
    """
    for kind in ("pairs", "preference", "classification"):
        if {*TEXTS[kind], *([LABELS[kind]] if kind in LABELS else [])} <= set(frame.columns):
            break
    else:
        raise LayerwiseError(
            f"{where} has the columns {', '.join(map(str, frame.columns))}; accepted are text and "
            "label; first, second and score; or chosen and rejected."
        )
    if kind != "classification":
        return kind
    labels = frame["label"].dropna()
    numeric = pd.api.types.is_numeric_dtype(labels)
    return "regression" if numeric and labels.nunique() > 20 else "classification"


def read_labels(path: Path, most: int, seed: int = 0) -> tuple[Labelled, int]:
    """Labelled rows of a file, at most so many drawn by a seed, and how many there are.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.labelled.read`, of the file and of the rows drawn; for columns of no
        kind, and if a row of each class for every split is more than `most`.
    """
    frame = labelled.read_table(path)
    kind = kind_of(frame, str(path))
    task = OwnTask(file=str(path), kind=kind, seed=seed)  # type: ignore[arg-type]
    data, n = labelled.read(task), len(frame)
    if n <= most:
        return data, n
    rows = _drawn(data, most, seed)
    part = Labelled(
        data.kind, [[column[r] for r in rows] for column in data.texts], data.labels[rows],
        [data.groups[r] for r in rows], seed,
    )  # fmt: skip
    try:
        if kind == "regression":
            probes.numbers(part.labels.tolist())
        if kind != "pairs":
            probes.splits(part.labels, part.groups, seed)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}, {most} of {n} rows drawn (--sample): {error}") from error
    return part, n


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
) -> LabelledChoice:
    """The score of every layer, and of the output, on labelled texts."""
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    from layerwise.activations.embed import embed
    from layerwise.tasks.joined import normalized

    texts = data.distinct()
    there = [r for r in ("residual", "output") if r in loaded.anatomy.readouts]
    parts: list[list[Any]] = [[] for _ in there]

    def keep(_start: int, _stop: int, slabs: Sequence[Any]) -> None:
        for mine, slab in zip(parts, slabs, strict=True):
            mine.append(slab.copy())

    embed(loaded, texts, keep, readings=[Reading(tokens, "mean", r) for r in there])
    layers = list(np.concatenate(parts[0], axis=1))
    if len(parts) > 1:
        layers.append(np.concatenate(parts[1], axis=1)[-1])
    rows = {text: row for row, text in enumerate(texts)}
    places = [[rows[text] for text in column] for column in data.texts]
    work = (delayed(_layer)(data, normalized(layer), places) for layer in layers)
    found: list[Found] = list(Parallel(n_jobs=threads)(work))
    if len(parts) == 1:
        found.append(found[-1])
    return LabelledChoice(found[:-1], found[-1], len(data.labels), SCORES[data.kind])


def _layer(data: Labelled, values: Any, places: Sequence[Sequence[int]]) -> Found:
    return labelled.layer_score(data, [values[column] for column in places])


# In words


def described(choice: Choice, labels: Mapping[str, str]) -> list[str]:
    """Lines to print: what each metric picks, the record, the advice.

    Parameters
    ----------
    labels : mapping of metric to what people call it
    """
    rules: dict[Any, dict[Any, Any]] = choice.record.set_index("rule").to_dict("index")
    lines = [f"{'metric':<36}{'better':<8}{'picks':>6}{'depth':>7}{'halves near':>13}{'loses':>8}"]
    for row in choice.picks.to_dict("records"):
        known = rules.get(row["metric"])
        lost = "" if known is None else f"{known['regret']:.1f}"
        refused = f"  no say: {row['refused']}" if row["refused"] else ""
        lines.append(
            f"{labels.get(row['metric'], row['metric']):<36}{row['better']:<8}{row['layer']:>6}"
            f"{100 * row['depth']:>5.0f} %{100 * row['near']:>11.0f} %{lost:>8}{refused}"
        )
    lines += [
        f"consensus: layer {choice.consensus} of {choice.last_layer} (tokens: {choice.tokens}); "
        f"{choice.agreement:.0%} of the metrics pick near it",
        "halves near: random halves of the texts that pick within a tenth of the depth. loses: "
        "points of score, on average, in other models:",
    ]
    for rule in (LAST, CONSENSUS, regret.MIDDLE, regret.SIXTY):
        if rule in rules:
            one = rules[rule]
            lines.append(
                f"  {rule:<12}{one['regret']:5.1f} [{one['low']:.1f}, {one['high']:.1f}] in "
                f"{one['n_models']} models"
            )
    if choice.layer is None:
        one = rules[LAST]
        lines.append(
            f"Advice: the model's own output (layer {choice.last_layer} after its last norm); "
            f"expected loss against the best layer {one['regret']:.1f} points."
        )
        lines.append(f"The evidence for another layer is weak: {choice.why}.")
        lines.append("Labelled texts or scored pairs tell more: --labels FILE.")
    else:
        one = rules[CONSENSUS]
        lines.append(
            f"Advice: layer {choice.layer}; expected loss against the best layer "
            f"{one['regret']:.1f} points [{one['low']:.1f}, {one['high']:.1f}]."
        )
    return lines


def described_labels(choice: LabelledChoice) -> list[str]:
    """Lines to print: every layer's score with its interval, and the advice."""
    lines = [f"{choice.score}, {choice.n_rows} rows, 95 % intervals"]
    named = [(str(layer), one) for layer, one in enumerate(choice.found)]
    for name, one in [*named, ("output", choice.output)]:
        mark = "  best layer" if name == str(choice.best) else ""
        if one.score is None:
            lines.append(f"{name:>7}  no score: {one.why}")
            continue
        ends = f" [{one.low:.3f}, {one.high:.3f}]" if one.low is not None else ""
        probe = one.probe
        beside = (
            f"  neighbours {probe.neighbours:.3f}, control {probe.control:.3f}" if probe else ""
        )
        lines.append(f"{name:>7}{one.score:8.3f}{ends}{beside}{mark}")
    if choice.layer is None:
        lines.append(
            "Advice: the model's own output; no layer can be told from it with these labels."
        )
    else:
        lines.append(
            f"Advice: layer {choice.layer}; the output's score lies below its interval. It is the "
            f"best of {len(choice.found)} layers on the same rows, so expect a little less on new "
            "ones."
        )
    return lines
