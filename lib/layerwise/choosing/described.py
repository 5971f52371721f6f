"""A choice of a layer in words: the lines that `layerwise choose` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerwise.association import regret
from layerwise.association.choice import CONSENSUS
from layerwise.association.regret import LAST
from layerwise.choosing.by_labels import LabelledChoice
from layerwise.choosing.choose import Choice


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
        f"{choice.agreement:.0%} of the metrics pick near it, and {choice.steady:.0%} of random "
        "halves of the texts have theirs near it",
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
    lead = choice.lead
    if lead is not None:
        lines.append(
            f"layer {choice.best} leads the output by {lead.value:.3f}, at least {lead.low:.3f} "
            f"(95 % interval over {lead.n_groups} groups of rows, corrected for the choice among "
            f"{len(choice.found)} layers)"
        )
    if choice.layer is None:
        lines.append("Advice: the model's own output; no layer can be told to lead it.")
    elif lead is None:
        lines.append(f"Advice: layer {choice.layer}; the output has no score.")
    else:
        lines.append(
            f"Advice: layer {choice.layer}. It was chosen on these rows, so expect less of a lead "
            "on new ones."
        )
    return lines
