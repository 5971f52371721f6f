"""What a study of the config asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from layerwise.errors import LayerwiseError, closest

COMPARED = ("model", "corpus", "revision", "sublayer")

# What a study shows that names no metrics: one each of the paper's three kinds.
SHOWN = ("prompt_entropy", "curvature", "infonce")


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
    metrics : tuple of MetricChoice or None
        None takes what the kind of study has as its default.
    protocol, alpha, normalization : str, float or None, str
        The variant of metrics that are given by name alone.
    sublayers : tuple of str or None
        Parts of blocks in place of the layers themselves (``block``): one, or with
        ``compare: sublayer`` several, of which None takes all there are.
    measure : str
        The association shown in the panels; ``all`` writes every one above each panel of
        metric_vs_score.
    pooling : str or tuple of str
        How the scored embeddings were pooled, and the readout where several were scored
        (``mean, final_norm``); score_by_depth shows several side by side.
    own_texts : mapping of corpus to task
        Corpora that are a task's own texts: metric and score are then compared task by task.
    compare : str
        What the colours of a comparison mean, one of `COMPARED`.
    ordered : bool
        Whether what is compared are steps of one thing (models ever larger, say, or ever more
        repeated tokens) and gets an ordered scale of colours; revisions always do.
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
    sublayers: tuple[str, ...] | None = None
    metrics: tuple[MetricChoice, ...] | None = None
    protocol: str = "paper"
    alpha: float | None = 1.0
    normalization: str = "raw"
    measure: str = "dcor"
    pooling: str | tuple[str, ...] = "mean"
    own_texts: Mapping[str, str] = field(default_factory=dict)
    compare: str = "model"
    ordered: bool = False
    resamples: int = 1000
    seed: int = 0

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> StudySettings:
        """Settings from one entry of the config's `studies`.

        Raises
        ------
        LayerwiseError
            For an unknown key or a metric without a name.
        """
        known = [f.name for f in fields(cls)]
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise LayerwiseError(
                    f"A study has no setting {key!r}{closest(key, known)}; it takes "
                    f"{', '.join(known)}."
                )
            values[key] = tuple(value) if isinstance(value, list) else value
        if isinstance(values.get("alpha"), str):
            values["alpha"] = float(values["alpha"])  # JSON has no infinity: "inf"
        if values.get("compare", "model") not in COMPARED:
            raise LayerwiseError(
                f"A study cannot compare by {values['compare']!r}; give one of "
                f"{', '.join(COMPARED)}."
            )
        names = values.pop("metrics", None)
        made = cls(**values)
        return made if names is None else made.with_metrics(names)

    def with_metrics(self, names: Sequence[str | Mapping[str, Any]]) -> StudySettings:
        """The same study of these metrics, in the study's variant unless they say another."""
        variant = {
            "protocol": self.protocol,
            "alpha": self.alpha,
            "normalization": self.normalization,
        }
        return replace(self, metrics=tuple(_choice(n, variant) for n in names))

    def with_default(self, *names: str) -> StudySettings:
        """The same study, of these metrics if it names none."""
        return self.with_metrics(names) if self.metrics is None else self

    @property
    def curves(self) -> tuple[MetricChoice, ...]:
        """The metrics, once they are settled."""
        return self.metrics or ()


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
