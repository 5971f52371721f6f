"""Choose a layer of one model, from labels or from published scores of models of its kind.

With labels, every layer has a score, and the best one, or the cheapest that is not worse, is
compared with the model's output. Without labels, the answer is the rule of layer selection that
loses least in the published models of this kind.
"""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm

from layerwise import stats
from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.analysis import measure, score_labels
from layerwise.association import evidence
from layerwise.association.selection import MIDDLE, OUTPUT, selected_layers
from layerwise.config.association import OWN_TEXTS
from layerwise.config.tasks import LabelledEntry
from layerwise.corpora.sources import read_rows
from layerwise.errors import LayerwiseError, closest, listed
from layerwise.metrics.registry import all_metrics, directions
from layerwise.models import saved
from layerwise.models.images import Images
from layerwise.models.load import LoadedModel
from layerwise.models.source import locate
from layerwise.section import parse
from layerwise.tasks import conll, labelled, probes, several
from layerwise.tasks.labelled import Labels, kind_of_labels
from layerwise.tasks.results import Score

log = logging.getLogger(__name__)

FEWEST_TEXTS = 20
SHARE_OF_NEAR_COPIES = 0.9
ADDED_VARIANCE = {"classification": 0.8, "tags": 0.8, "regression": 2.4}
"""Variance added for the training rows that probes share, in units of Nadeau and Bengio's (2003).
Simulated (docs/statistics.md); R² takes more, as its penalty varies between splits."""
OWN_CORPORA = (OWN_TEXTS, "imagenet")
"""Corpora of the published metrics that are like a user's own texts and images."""
CHAT = "chat model"
TEXTS_TIMED = 64
TAGGED = (".conll", ".conllu")
SCORES = {
    "classification": "accuracy of a linear probe",
    "regression": "R² of a linear probe",
    "pairs": "Spearman's correlation with the cosine",
    "tags": "accuracy of a linear probe on words",
}


Losses = dict[str, Mapping[Any, Any]]


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
        Its score or expected loss, with the 95% interval.
    tokens : str
        Token selection that the layers were read with.
    score : str
        Name of the score; empty without labels.
    table : DataFrame
        With labels a row per layer: layer, score, low, high, difference (from the output),
        difference_low, difference_high, n. The 95% intervals hold for all layers together, which
        corrects for selecting one; `choose_by_scores` says how. Without labels a row per rule:
        rule, layer, loss, low, high, n_models, as `layerwise.association.evidence`; `layer` is
        null for metrics that were not computed.
    several : DataFrame, optional
        As `compare_several`, if several layers were asked for.
    """

    layer: int
    advice: str
    reason: str
    tokens: str
    score: str
    table: pd.DataFrame = field(repr=False)
    several: pd.DataFrame | None = field(default=None, repr=False)

    @property
    def sentence(self) -> str:
        """The advice and its reason."""
        return f"{self.advice} {self.reason}"

    def export_command(self, model: str, **options: object) -> str:
        """The shell command that saves the model up to the layer, with the same tokens.

        Parameters
        ----------
        **options
            Further options of ``layerwise export``, such as ``revision``.
        """
        name = re.split(r"[/#]", model.rstrip("/"))[-1].removesuffix(".gguf")
        given = {"layer": self.layer, "tokens": self.tokens, "pooling": "mean", **options}
        words = ["layerwise", "export", model, f"{name}-{self.layer}"]
        words += [str(x) for key, value in given.items() for x in (f"--{key}", value)]
        return shlex.join(words)


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
    within: float | None = None,
    layers: int | None = None,
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
    within : float, optional
        Choose the cheapest layer that loses at most so many points (hundredths of the score)
        against the output.
    layers : int, optional
        Compare so many layers together with the best one, as `compare_several`.

    Raises
    ------
    LayerwiseError
        If `within` or `layers` is given without labels, or the model has too few layers.
    """
    if layers is not None and not 2 <= layers <= loaded.anatomy.n_layers:
        raise LayerwiseError(
            f"layers: expected 2 to {loaded.anatomy.n_layers}, the layers of {loaded.name}, got "
            f"{layers}.",
            code="out_of_range",
        )
    tokens = tokens or ("drop_first" if loaded.is_causal() else "all")
    if not isinstance(data, Labels):
        if within is not None:
            raise LayerwiseError("within needs labels; give --labels.", code="conflict")
        if layers is not None:
            raise LayerwiseError("layers needs labels; give --labels.", code="conflict")
        return choose_by_evidence(loaded, data, tokens, threads, seed)
    if n := count_near_copies(data):
        log.warning(
            "%d of %d rows are near-copies of others; many of them make scores too high and "
            "intervals too narrow.",
            n,
            len(data.labels),
        )
    scores: Any = score_labels(loaded, data, tokens, threads, keep_vectors=layers is not None)
    choice = choose_by_scores(scores, data.kind, tokens, within)
    if within is not None and choice.layer != loaded.anatomy.n_layers - 1:
        choice = replace(choice, reason=f"{choice.reason} {_savings(loaded, data, choice.layer)}")
    if layers is None:
        return choice
    table, said = compare_several(data, [one.columns for one in scores], layers)
    return replace(choice, reason=f"{choice.reason} {said}", several=table)


def compare_several(
    data: Labels, layers: Sequence[several.Columns], k: int
) -> tuple[pd.DataFrame, str]:
    """Compare k layers together with the best layer, selected in the same way, and the output.

    Parameters
    ----------
    layers : sequence
        Vectors of every layer, as `layerwise.tasks.several.combinations`, which says how layers
        are selected.

    Returns
    -------
    table : DataFrame
        The columns used, layers (those that most splits selected), score, low, high, gain (over
        the best layer), gain_low, gain_high, over_output, over_output_low, over_output_high. The
        95% intervals of a column hold for all rows together.
    sentence : str
        What the best combination gains.
    """
    found = [one for one in several.combinations(data, layers, k) if one.score.parts is not None]
    parts = np.stack([np.asarray(one.score.parts) for one in found], axis=1)
    parts *= len(parts)
    widening = _widening(found[0].score, data.kind)
    low, high = _interval(stats.simultaneous_ci(parts, widening=widening), data.kind)
    table = pd.DataFrame(
        {
            "used": [one.name for one in found],
            "layers": [_most_selected(one.layers) for one in found],
            "score": parts.mean(axis=0),
            "low": low,
            "high": high,
        }
    )
    for name, against in (("gain", 1), ("over_output", 0)):
        more = stats.simultaneous_ci(parts - parts[:, [against]], widening=widening)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = more[:3]
    best: Any = max(table.to_dict("records")[2:], key=lambda row: row["score"])
    low, high = best["gain_low"], best["gain_high"]
    certain = "significant" if low > 0 or high < 0 else "not significant"
    return table, (
        f"Of {k} layers together, the {best['used']} score best: {_with_ends(best)}, "
        f"{100 * best['gain']:+.1f} points against the best layer ({100 * low:+.1f} to "
        f"{100 * high:+.1f}), which is {certain}."
    )


def _most_selected(of_splits: Sequence[tuple[int, ...]]) -> str:
    ((layers, n),) = Counter(tuple(sorted(one)) for one in of_splits).most_common(1)
    share = "" if n == len(of_splits) else f" ({n} of {len(of_splits)} splits)"
    return " ".join(map(str, layers)) + share


def kind_of_model(loaded: LoadedModel) -> str:
    """Kind of a model, as in `layerwise.association.evidence`, or `CHAT`."""
    if isinstance(loaded.reader, Images):
        return evidence.VISION
    source = loaded.entry.source
    if loaded.scales or (source and saved.read(locate(source, loaded.revision), saved.MODULES)):
        return evidence.EMBEDDING
    if not loaded.is_causal():
        return evidence.ENCODER
    return CHAT if loaded.texts.tokenizer.chat_template else evidence.DECODER


def choose_by_evidence(
    loaded: LoadedModel, texts: Sequence[Any], tokens: str, threads: int = 1, seed: int = 0
) -> Choice:
    """Choose by the rule that loses least in the published models of this kind.

    The rule is the model's output or the middle layer, whichever loses less on average over
    `layerwise.stats.FEWEST` models or more; the reason says how certain that is. A metric replaces
    it if it loses significantly less in the same models; other metrics are not computed.
    """
    kind, last = kind_of_model(loaded), loaded.anatomy.n_layers - 1
    table = evidence.expected_losses()
    own = table["corpus"].isna() | table["corpus"].isin(OWN_CORPORA)
    table = table[own & (table["kind"] == kind)]
    losses: Losses = {row["rule"]: row for row in table.to_dict("records")}
    rule = OUTPUT
    if losses and losses[MIDDLE]["n_models"] >= stats.FEWEST:
        rule = min((OUTPUT, MIDDLE), key=lambda name: losses[name]["loss"])
    layers = {OUTPUT: last, MIDDLE: last // 2}
    better = metrics_better_than(rule, kind) if losses else []
    if better:
        layers |= _layers_of_metrics(loaded, texts, tokens, better, threads, seed)
        rule = next((metric for metric in better if metric in layers), rule)
    table = table.assign(layer=table["rule"].map(layers).astype("Int64"))
    return Choice(
        layers[rule],
        _advice(layers[rule], last, f"which {rule} selects" if rule in better else ""),
        _reason_of_evidence(losses, kind, rule, computed=bool(better)),
        tokens,
        "",
        table[["rule", "layer", "loss", "low", "high", "n_models"]].reset_index(drop=True),
    )


def metrics_better_than(rule: str, kind: str) -> list[str]:
    """Metrics that lose significantly less than a rule in published models, best first.

    By paired differences over the same models, p values adjusted for all metrics. Metrics of
    augmented texts do not count.
    """
    losses = evidence.losses()
    losses = losses[losses["kind"] == kind]
    of_rule = losses[losses["rule"] == rule].set_index("model")["loss"]
    computable = [name for name, metric in all_metrics().items() if metric.min_views == 0]
    found = {}
    for metric, part in losses[losses["corpus"].isin(OWN_CORPORA)].groupby("rule"):
        if metric in computable:
            less = part.set_index("model")["loss"] - of_rule
            found[str(metric)] = stats.mean_ci(less.dropna().to_numpy())
    p = stats.holm([one.p for one in found.values()])
    better = [m for m, value in zip(found, p, strict=True) if value <= stats.ALPHA]
    return sorted((m for m in better if found[m].estimate < 0), key=lambda m: found[m].estimate)


def _layers_of_metrics(
    loaded: LoadedModel,
    texts: Sequence[Any],
    tokens: str,
    metrics: Sequence[str],
    threads: int,
    seed: int,
) -> dict[str, int]:
    """Layers that metrics select on the texts, by the formulas of the published ones."""
    wanted = {metric: directions()[metric] for metric in metrics}
    table, prompts = measure(
        loaded, [texts], threads, metrics=[*metrics], tokens=tokens, protocols="reference"
    )
    found = selected_layers(table, wanted, prompts, seed)
    found = found[found["metric"].isin(metrics) & (found["unreliable"] == "")]
    return dict(zip(found["metric"], found["layer"].astype(int), strict=True))


def _reason_of_evidence(losses: Losses, kind: str, rule: str, *, computed: bool) -> str:
    """The expected loss of the chosen rule and of the others that were considered."""
    if not losses:
        return f"There are no published scores of a model of this kind ({kind})."
    n_models = losses[rule]["n_models"]
    said = ", ".join(
        f"the {name} {_loss(losses[name])}" for name in (OUTPUT, MIDDLE) if name != rule
    )
    if rule == MIDDLE:
        known = evidence.losses()
        known = known[known["kind"] == kind].pivot_table("loss", "model", "rule")
        more = stats.paired_difference(known[OUTPUT], known[MIDDLE])
        certain = "significant" if more.low > 0 else "not significant"
        said += f"; the difference ({more.low:.1f} to {more.high:.1f}) is {certain}"
    models = f"{n_models} published {kind}s" if n_models > 1 else f"the one published {kind}"
    name = rule if rule not in (OUTPUT, MIDDLE) else f"the {rule}"
    metrics = "" if computed else " No metric selects significantly better layers."
    return (
        f"In {models}, {name} loses {_loss(losses[rule])} against the best layer, {said}."
        f"{metrics} Labels tell more (--labels)."
    )


def _loss(row: Mapping[Any, Any]) -> str:
    """A loss in points with its interval, if there is one."""
    interval = f"95% CI {row['low']:.1f} to {row['high']:.1f}"
    return f"{row['loss']:.1f} points ({interval if np.isfinite(row['low']) else 'no CI'})"


def _advice(layer: int, last: int, why: str = "") -> str:
    what = f"the output (layer {last})" if layer == last else f"layer {layer} of {last}"
    return f"Use {what}{f', {why}' if why else ''}."


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
    # A lone surrogate has no UTF-8; the tokenizer replaces it too.
    texts = ([t.encode("utf-8", "replace").decode() for t in column] for column in data.texts)
    counts = [vectorizer.transform(column) for column in texts]
    groups, n = pd.factorize(np.array(data.groups, dtype=object))[0], 0
    for start in range(0, len(groups), 1000):
        part = slice(start, start + 1000)
        alike = [(c[part] @ c.T).toarray() >= SHARE_OF_NEAR_COPIES for c in counts]
        apart = groups[part, None] != groups
        n += int((np.logical_and.reduce(alike) & apart).any(axis=1).sum())
    return n


def choose_by_scores(
    found: Sequence[Score], kind: str, tokens: str = "all", within: float | None = None
) -> Choice:
    """Choose by the scores of layers 0 to L, the last of which is the output.

    Another layer is chosen if it is the best and significantly better than the output. With
    `within`, the first layer is chosen that loses at most so many points by the lower end of its
    interval.

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
    if within is None:
        layer, reason = _conclusion(table, found[-1].baseline or 0.0)
    else:
        layer, reason = _cheapest(table, within)
    return Choice(layer, _advice(layer, len(found) - 1), reason, tokens, SCORES[kind], table)


def _widening(score: Score, kind: str) -> float:
    """Factor on standard errors for probes that share training rows."""
    if not score.n_train:
        return 1.0
    return float(np.sqrt(1 + ADDED_VARIANCE[kind] * score.n_runs / score.n_train))


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
    """The layer to use, and the reason.

    Another layer than the output has to score higher than the output and than guessing.
    """
    rows: Any = table.to_dict("records")
    output, best = rows[-1], rows[int(np.nanargmax(table["score"]))]
    last = len(table) - 1
    tied = table.loc[table["score"] >= best["score"] - 1e-12, "layer"].tolist()
    score = _with_ends(best)
    if len(tied) == len(table):
        return last, f"All {len(tied)} layers score {score}: these labels are too easy."
    name = f"Layer {tied[0]}" if len(tied) == 1 else f"Layers {', '.join(map(str, tied))} (tie)"
    if output["layer"] in tied:
        other = ", and no other layer scores higher" if len(tied) == 1 else f", as {name}"
        return last, f"It scores {score}{other}."
    lead = (
        f"{100 * best['difference']:.1f} points above the output "
        f"({100 * best['difference_low']:.1f} to {100 * best['difference_high']:.1f})"
    )
    if best["low"] <= guessing:
        return last, f"{name} scores {score}, not better than guessing ({guessing:.2f})."
    if best["difference_low"] > 0:
        return int(best["layer"]), f"{name} scores {score}, {lead}."
    return last, (
        f"It scores {_with_ends(output)}. {name} scores {best['score']:.2f}, {lead}, which is not "
        "significant."
    )


def _cheapest(table: pd.DataFrame, within: float) -> tuple[int, str]:
    """The first layer that loses at most so many points, and the reason."""
    last = len(table) - 1
    enough = table.index[table["difference_low"] >= -within / 100]
    layer = int(enough[0]) if len(enough) else last
    if layer == last:
        return last, f"No earlier layer is certain to lose at most {within:g} points."
    row: Any = table.to_dict("records")[layer]
    return layer, (
        f"It scores {_with_ends(row)}, {100 * row['difference']:+.1f} points against the output "
        f"({100 * row['difference_low']:+.1f} to {100 * row['difference_high']:+.1f})."
    )


def _with_ends(row: Mapping[Any, Any]) -> str:
    return f"{row['score']:.2f} (95% CI {row['low']:.2f} to {row['high']:.2f})"


def _savings(loaded: LoadedModel, data: Labels, layer: int) -> str:
    """Parameters and time of a pass that are saved by a cut at a layer."""
    blocks = loaded.anatomy.blocks
    kept = {id(p) for block in blocks[:layer] for p in block.parameters()}
    cut = {id(p): p.numel() for block in blocks[layer:] for p in block.parameters()}
    saved_parameters = sum(n for key, n in cut.items() if key not in kept)
    whole = sum(p.numel() for p in loaded.model.parameters())
    texts = data.distinct()[:TEXTS_TIMED]
    return (
        f"Cut there, the model has {(whole - saved_parameters) / 1e6:.1f} of {whole / 1e6:.1f} "
        f"million parameters and takes {100 * time_share(loaded, texts, layer):.0f}% of the time "
        f"(a pass over {len(texts)} texts)."
    )


def time_share(loaded: LoadedModel, texts: Sequence[Any], layer: int) -> float:
    """Measure the share of a pass's time until a layer before the last."""
    start = reached = before = whole = 0.0
    n_calls = 0

    def now() -> float:
        if loaded.device.type == "cuda":
            torch.cuda.synchronize(loaded.device)
        return time.perf_counter()

    def begin(*_: Any) -> None:
        nonlocal start, n_calls, reached
        start, n_calls = now(), 0

    def enter(*_: Any) -> None:
        nonlocal n_calls, reached
        if n_calls == layer:
            reached = now()
        n_calls += 1

    def end(*_: Any) -> None:
        nonlocal before, whole
        before, whole = before + reached - start, whole + now() - start

    hooks = [loaded.model.register_forward_pre_hook(begin)]
    hooks += [
        block.register_forward_pre_hook(enter) for block in dict.fromkeys(loaded.anatomy.blocks)
    ]
    hooks.append(loaded.model.register_forward_hook(end))
    try:
        for _ in range(2):  # The first pass is slower.
            before = whole = 0.0
            embed(loaded, texts, [Representation("all", "mean", loaded.anatomy.readouts[0])])
    finally:
        for hook in hooks:
            hook.remove()
    return before / whole


def plot(choice: Choice, path: Path) -> None:
    """Draw the score of every layer, or the expected loss of every rule, to a file."""
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
            ax.set_ylabel(choice.score[0].upper() + choice.score[1:])
            handles = [("best layer", marks.best()), ("model output", marks.output())]
            ax.legend(handles=[marks.entry(name, **style) for name, style in handles])
        else:
            table = table.iloc[::-1]
            names = [metric_label(rule) for rule in table["rule"]]
            ends = table["low"].to_numpy(), table["high"].to_numpy()
            marks.dots(ax, table["loss"].to_numpy(), names, *ends)
        ax.set_xlabel("Layer" if choice.score else "Score lost against the best layer (points)")
        figure.suptitle("Layer choice", x=0.01, ha="left")
        figure.savefig(path)
