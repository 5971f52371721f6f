"""Choose a layer without labels, by published scores of models of its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association import published
from layerwise.association.selection import MIDDLE, MODEL_OUTPUT
from layerwise.choosing.choice import Choice, advice
from layerwise.config.settings import OWN_TEXTS
from layerwise.models.load import LoadedModel
from layerwise.models.media import Images, Recordings
from layerwise.models.states import States

# Corpora of the published metrics that are like a user's own texts and images.
OWN_CORPORA = (OWN_TEXTS, "imagenet")
CHAT, AUDIO, STATES = "chat model", "audio model", "given states"
ASK_FOR_LABELS = "40 labelled rows, half an hour's work, would tell more (--labels)."


def kind_of_model(loaded: LoadedModel) -> str:
    """Kind of a model, as in `layerwise.association.published`, or `CHAT`, `AUDIO` or `STATES`."""
    if isinstance(loaded.reader, States):
        return STATES
    if isinstance(loaded.reader, Images | Recordings):
        return published.VISION if isinstance(loaded.reader, Images) else AUDIO
    if loaded.embedder.is_saved:
        return published.EMBEDDING
    if not loaded.is_causal:
        return published.ENCODER
    return CHAT if loaded.texts.tokenizer.chat_template else published.DECODER


def choose_by_evidence(loaded: LoadedModel, tokens: str) -> Choice:
    """Recommend the model's output, unless published models of this kind support the middle layer.

    They do if the middle layer loses significantly less than the output in
    `layerwise.stats.FEWEST` models or more, by paired differences.
    """
    kind, last = kind_of_model(loaded), loaded.anatomy.n_layers - 1
    table = published.expected_losses()
    like_own_data = table["corpus"].isna() | table["corpus"].isin(OWN_CORPORA)
    table = table[like_own_data & (table["kind"] == kind)]
    layers = {MODEL_OUTPUT: last, MIDDLE: last // 2}
    rule, reason = _best_rule(kind, table.set_index("rule"))
    table = table.assign(layer=table["rule"].map(layers).astype("Int64"))
    return Choice(
        layers[rule],
        advice(layers[rule], last),
        f"{reason} {ASK_FOR_LABELS}",
        tokens,
        "",
        table[["rule", "layer", "loss", "low", "high", "n_models"]].reset_index(drop=True),
        pooling=loaded.embedder.pooling,
        takes=loaded.reader.takes,
    )


def _best_rule(kind: str, losses: pd.DataFrame) -> tuple[str, str]:
    """The rule to follow for a kind of model, and the evidence."""
    if losses.empty:
        return MODEL_OUTPUT, f"There are no published scores of a model of this kind ({kind})."
    rows: Any = losses.to_dict("index")
    points = {}
    for rule in (MODEL_OUTPUT, MIDDLE):
        row = rows[rule]
        ends = f"95% CI {row['low']:.1f} to {row['high']:.1f}"
        points[rule] = f"{row['loss']:.1f} points ({ends if np.isfinite(row['low']) else 'no CI'})"
    n_models = rows[MODEL_OUTPUT]["n_models"]
    models = f"{n_models} published {kind}s" if n_models > 1 else f"the one published {kind}"
    reason = (
        f"In {models}, the output loses {points[MODEL_OUTPUT]} against the best layer, the middle "
        f"layer {points[MIDDLE]}"
    )
    if n_models < stats.FEWEST:
        return MODEL_OUTPUT, f"{reason}: too few models to recommend another layer."
    by_model = published.losses()
    by_model = by_model[by_model["kind"] == kind].pivot_table("loss", "model", "rule")
    less = stats.paired_difference(by_model[MODEL_OUTPUT], by_model[MIDDLE])
    rule, negation = (MIDDLE, "") if less.low > 0 else (MODEL_OUTPUT, "not ")
    difference = f"The difference ({less.low:.1f} to {less.high:.1f}) is {negation}significant."
    return rule, f"{reason}. {difference}"
