"""Choose a layer without labels, by published scores of models of its kind.

The answer is the rule of layer selection that loses least in the published models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from layerwise import stats
from layerwise.analysis import measure
from layerwise.association import evidence
from layerwise.association.selection import MIDDLE, OUTPUT, selected_layers
from layerwise.choosing.choice import Choice, advice
from layerwise.config.settings import OWN_TEXTS
from layerwise.metrics.registry import all_metrics, directions
from layerwise.models import saved
from layerwise.models.load import LoadedModel
from layerwise.models.media import Images, Recordings
from layerwise.models.source import locate

OWN_CORPORA = (OWN_TEXTS, "imagenet")
"""Corpora of the published metrics that are like a user's own texts and images."""
CHAT, AUDIO = "chat model", "audio model"

Losses = dict[str, Mapping[Any, Any]]


def kind_of_model(loaded: LoadedModel) -> str:
    """Kind of a model, as in `layerwise.association.evidence`, or `CHAT` or `AUDIO`."""
    if isinstance(loaded.reader, Images | Recordings):
        return evidence.VISION if isinstance(loaded.reader, Images) else AUDIO
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
        advice(layers[rule], last, f"which {rule} selects" if rule in better else ""),
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
        return (
            f"There are no published scores of a model of this kind ({kind}) to learn from. "
            "Labels tell more (--labels)."
        )
    n_models = losses[rule]["n_models"]
    sentence = " and ".join(
        f"the {name} loses {_loss(losses[name])}" for name in (OUTPUT, MIDDLE) if name != rule
    )
    sentence = f"against the best layer; {sentence}."
    if rule == MIDDLE:
        known = evidence.losses()
        known = known[known["kind"] == kind].pivot_table("loss", "model", "rule")
        more = stats.paired_difference(known[OUTPUT], known[MIDDLE])
        certain = "significant" if more.low > 0 else "not significant"
        sentence += f" The difference ({more.low:.1f} to {more.high:.1f}) is {certain}."
    models = f"{n_models} published {kind}s" if n_models > 1 else f"the one published {kind}"
    name = rule if rule not in (OUTPUT, MIDDLE) else f"the {rule}"
    metrics = "" if computed else " No metric selects significantly better layers."
    return (
        f"In {models}, {name} loses {_loss(losses[rule])} {sentence}"
        f"{metrics} Labels tell more (--labels)."
    )


def _loss(row: Mapping[Any, Any]) -> str:
    """A loss in points with its interval, if there is one."""
    interval = f"95% CI {row['low']:.1f} to {row['high']:.1f}"
    return f"{row['loss']:.1f} points ({interval if np.isfinite(row['low']) else 'no CI'})"
