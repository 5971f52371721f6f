"""What a study of the config asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from layerwise.errors import LayerwiseError, closest


@dataclass(frozen=True)
class MetricChoice:
    """One metric as one curve: which of its variants to draw."""

    metric: str
    protocol: str = "paper"
    alpha: float | None = 1.0
    normalization: str = "raw"


@dataclass(frozen=True)
class StudySettings:
    """A study of the config.

    Attributes
    ----------
    kind : str
        Which figure, a key of `layerwise.figures.studies.KINDS`.
    models, corpora, tasks, task_types, tokens : tuple of str or None
        What to draw; None draws all there is. The order is that of the panels.
    revisions : tuple of str or None
        Checkpoints; None takes the last of each model, or all of them in studies of checkpoints.
    metrics : tuple of MetricChoice
    measure : str
        The association shown in the panels.
    pooling : str
    own_texts : mapping of corpus to task
        Corpora that are a task's own texts: metric and score are then compared task by task.
    compare : str
        What the colours of a comparison mean: ``model``, ``corpus`` or ``revision``.
    resamples, seed : int
        Bootstrap over tasks, for the intervals of mean scores.
    """

    kind: str
    models: tuple[str, ...] | None = None
    revisions: tuple[str, ...] | None = None
    corpora: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    task_types: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None
    metrics: tuple[MetricChoice, ...] = (
        MetricChoice("prompt_entropy"),
        MetricChoice("curvature", alpha=None),
        MetricChoice("infonce", alpha=None),
    )
    measure: str = "dcor"
    pooling: str = "mean"
    own_texts: Mapping[str, str] = field(default_factory=dict)
    compare: str = "model"
    resamples: int = 1000
    seed: int = 0

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> StudySettings:
        """Settings from one entry of the config's `studies`.

        `protocol`, `alpha` and `normalization` hold for every metric that is given by name alone.

        Raises
        ------
        LayerwiseError
            For an unknown key or a metric without a name.
        """
        variant = {"protocol": "paper", "alpha": 1.0, "normalization": "raw"}
        known = [*(f.name for f in fields(cls)), *variant]
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise LayerwiseError(
                    f"A study has no setting {key!r}{closest(key, known)}; it takes "
                    f"{', '.join(known)}."
                )
            if key in variant:
                variant[key] = value
            else:
                values[key] = tuple(value) if isinstance(value, list) else value
        names = values.get("metrics") or [m.metric for m in cls.metrics]
        values["metrics"] = tuple(_choice(m, variant) for m in names)
        if values.get("compare", "model") not in ("model", "corpus", "revision"):
            raise LayerwiseError(
                f"A study cannot compare by {values['compare']!r}; give model, corpus or revision."
            )
        return cls(**values)


def _choice(given: str | Mapping[str, Any], variant: Mapping[str, Any]) -> MetricChoice:
    fill = dict(variant)
    if isinstance(given, str):
        fill["metric"] = given
    else:
        known = [f.name for f in fields(MetricChoice)]
        for key in given:
            if key not in known:
                raise LayerwiseError(
                    f"A metric of a study has no setting {key!r}{closest(key, known)}; it takes "
                    f"{', '.join(known)}."
                )
        if "metric" not in given:
            raise LayerwiseError(f"A metric of a study needs a name: {dict(given)} has none.")
        fill.update(given)
    if isinstance(fill["alpha"], str):
        fill["alpha"] = float(fill["alpha"])  # JSON has no infinity: "inf"
    return MetricChoice(**fill)


def in_order(present: Sequence[str], order: Sequence[str] | None) -> list[str]:
    """Names that are there, in the order asked for; the rest, sorted, after them."""
    first = [n for n in (order or ()) if n in present]
    return first + sorted(set(present) - set(first))
