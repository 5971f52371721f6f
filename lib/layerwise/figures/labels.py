"""Names as a reader of a figure should see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerwise.metrics.registry import all_metrics
from layerwise.metrics.sequence import QUANTITIES
from layerwise.vocabulary import LABELS

TOKENS = {
    "all": "all tokens",
    "drop_first": "without the first token",
    "drop_sinks": "without sink tokens",
    "patches": "patches",
    "class": "class token",
}

WITH = {
    "all": "with all tokens",
    "drop_first": TOKENS["drop_first"],
    "drop_sinks": TOKENS["drop_sinks"],
    "patches": "by the patches",
    "class": "by the class token",
}

# In the order in which a block computes them.
SUBLAYERS = {
    "input_norm": "norm before attention",
    "mixer": "attention or mixer",
    "mixer_residual": "after adding attention",
    "mlp_norm": "norm before the MLP",
    "mlp": "MLP",
    "block": "block (the layer)",
}

MEASURES = {
    "r": "Partial correlation given depth",
    "slope": "Points of score per standard deviation of the metric, given depth",
    "dcor": "dCor",
    "bcdcor": "Bias-corrected dCor²",
    "spearman": "Spearman’s ρ",
    "kendall": "Kendall’s τ",
}
SYMBOLS = {
    "r": "r given depth", "slope": "slope", "dcor": "dCor", "bcdcor": "dCor² bc",
    "spearman": "ρ", "kendall": "τ",
}  # fmt: skip

POOLINGS = {
    "last_token": "last token", "cls": "first token (CLS)",
    # Of tasks that are scored from token states.
    "letter": "letter of the answer", "answer": "likelihood of the answer",
    "answer_per_character": "likelihood per character",
    "match_precision": "matched tokens, precision", "match_recall": "matched tokens, recall",
    "match_f1": "matched tokens, F1", "match_precision_idf": "matched tokens, precision with idf",
    "match_recall_idf": "matched tokens, recall with idf",
    "match_f1_idf": "matched tokens, F1 with idf",
}  # fmt: skip
LENS = (
    "Answers are read from a layer through the model's own last norm and unembedding (the plain "
    "lens), so that chance at a layer says that the answer cannot be read off there that way, not "
    "that it is not there."
)
READOUTS = {"final_norm": "final norm", "output": "last layer after the model's norm"}


def reading(tokens: str, pooling: str) -> str:
    """How token states became one vector, as one name: ``drop_first``, ``last_token``.

    The last token is the same one whatever is dropped in front of it.
    """
    how, *readout = pooling.split(", ")
    base = tokens if how == "mean" else how
    if how not in ("mean", "last_token") and tokens != "all":
        base = f"{how} of {tokens}"
    return ", ".join([base, *readout])


def of_all_tokens(name: str) -> str:
    """The reading that differs from one in its choice of tokens alone, and takes all of them."""
    base, *readout = name.split(", ")
    how = "all" if base in TOKENS else base.partition(" of ")[0]
    return ", ".join([how, *readout])


def reading_label(name: str, *, sentence: bool = False) -> str:
    """A reading in words; in a sentence with its preposition."""
    base, *readout = name.split(", ")
    how, _, tokens = base.partition(" of ")
    if base in TOKENS:
        label = WITH[base] if sentence else TOKENS[base]
    else:
        label = POOLINGS.get(how, how)
        if tokens:
            left = f"first token left {TOKENS[tokens]}"
            label = left if how == "cls" else f"{label}, {TOKENS[tokens]}"
        label = f"by the {label}" if sentence else label
    return ", ".join([label, *(READOUTS.get(r, r) for r in readout)])


def tokens_label(tokens: str, pooling: str, *, sentence: bool = False) -> str:
    """Tokens and pooling, of studies that set metrics beside scores; the mean needs no mention."""
    label = (WITH if sentence else TOKENS)[tokens]
    return label if pooling == "mean" else f"{label}, {POOLINGS.get(pooling, pooling)}"


NORMALIZATIONS = {
    "logN": "÷ log N",
    "logD": "÷ log D",
    "logNlogD": "÷ (log N log D)",
    "maxEntropy": "÷ log min(N, D)",
}


def metric_label(metric: str) -> str:
    """A metric's name in words; metrics of tables from elsewhere keep the name they have there."""
    known = QUANTITIES.get(metric) or all_metrics().get(metric)
    return known.label if known else metric


def in_sentence(metric: str) -> str:
    """A metric's name inside a sentence: names such as DiME keep their capitals."""
    label = metric_label(metric)
    first = label.split()[0] if label else ""
    return label if first[1:] != first[1:].lower() else label[:1].lower() + label[1:]


def metric_unit(metric: str, normalization: str) -> str:
    """The unit of an axis; empty for plain numbers and for normalised values."""
    known = QUANTITIES.get(metric) or all_metrics().get(metric)
    return known.unit if known and normalization == "raw" else ""


def in_unit(what: str, metric: str, normalization: str = "raw") -> str:
    """What is read off a metric, with the metric's unit."""
    unit = metric_unit(metric, normalization)
    return f"{what} ({unit})" if unit else what


def axis_label(metric: str, alpha: float | None, normalization: str) -> str:
    """What an axis says: the quantity's symbol or name, its unit, alpha unless 1."""
    unit = metric_unit(metric, normalization)
    notes = [unit] if unit else []
    if normalization != "raw":
        notes.append(NORMALIZATIONS[normalization])
    if alpha is not None and alpha != 1:
        notes.append("α = ∞" if np.isinf(alpha) else f"α = {alpha:g}")
    return f"{metric_label(metric)} ({', '.join(notes)})" if notes else metric_label(metric)


def value_label(dimension: str, value: str) -> str:
    """A value of a dimension in words."""
    if dimension == "reading":
        return reading_label(value)
    if dimension == "alpha":
        return "no α" if value == "" else f"α = {float(value):g}".replace("inf", "∞")
    if dimension == "layers":
        return layers_label(value)
    if dimension in LABELS:
        return "as they are" if value == "" else f"{dimension} {float(value):g}"
    known = {"tokens": TOKENS, "sublayer": SUBLAYERS, "pooling": POOLINGS,
             "normalization": NORMALIZATIONS}  # fmt: skip
    return known.get(dimension, {}).get(value, value)


NOUNS = {
    "model": "model", "revision": "checkpoint", "corpus": "corpus", "task": "task",
    "task_type": "task type", "reading": "reading", "tokens": "choice of tokens",
    "layers": "choice of layers",
    "sublayer": "part of the block", "alpha": "order α", "protocol": "protocol",
    "pooling": "pooling", "normalization": "normalisation",
    "repetition": "share of repeated tokens", "randomness": "share of random tokens",
    "length": "prompt length",
}  # fmt: skip
PLURALS = {"share of repeated tokens": "shares of repeated tokens",
           "share of random tokens": "shares of random tokens", "corpus": "corpora",
           "choice of tokens": "choices of tokens", "choice of layers": "choices of layers",
           "part of the block": "parts of the block", "order α": "orders α"}  # fmt: skip


def noun_of(dimension: str) -> str:
    """What one value of a dimension is called."""
    return NOUNS.get(dimension, dimension)


def layers_label(name: str) -> str:
    """Which layers are read together, in words: ``mean of the last 4 layers``."""
    how, _, which = name.partition(" ")
    if how == "mean":
        return f"mean of {'all layers' if which == 'all' else f'the last {which} layers'} up to it"
    if how == "concat":
        known = {"last": "the output", "class": "the class token"}
        return f"pair with {known.get(which, f'layer {which}')}"
    return "one layer"


def percent(depth: float) -> str:
    """Depth as a whole per cent."""
    return f"{100 * depth:.0f} %"


def signed(points: float) -> str:
    """A difference to one digit with its sign, the minus as typeset."""
    return f"{points:+.1f}".replace("-", "−")


def p_value(p: float) -> str:
    """A p-value to two digits, as ``p = .03`` or ``p < .001``."""
    if p < 0.001:
        return "p < .001"
    if p >= 0.995:
        return "p = 1"
    return "p = " + (f"{p:.2f}" if p >= 0.0995 else f"{p:.3f}").removeprefix("0")


def listing(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def counted(n: int, noun: str) -> str:
    """``1 task``, ``5 tasks``."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    plural = PLURALS.get(noun, plural)
    return f"{n:,} {noun if n == 1 else plural}"


def span(values: Sequence[int]) -> str:
    """``120`` if all are alike, else ``60–120``."""
    low, high = int(np.min(values)), int(np.max(values))
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
