"""The section ``studies``: figures with their tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from layerwise.config.association import Measure, Over
from layerwise.config.kinds import KINDS, ROLES
from layerwise.section import Alpha, Name, Section, SomeOf
from layerwise.vocabulary import Normalization, PublishedProtocol, Sublayer, Tokens

if TYPE_CHECKING:
    KindName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]


Role = str | SomeOf[str] | None


VARIANT = ("protocol", "alpha", "normalization")


class MetricChoice(Section):
    """One metric in one variant."""

    metric: str
    """Name of the metric."""
    protocol: PublishedProtocol | None = None
    """Formulas as in the paper, or as in the released code (reference); reference_2024 of
    published tables."""
    alpha: Alpha | None = None
    """Order of the entropy; inf for infinity."""
    normalization: Normalization | None = None
    """Normalisation of the entropy."""


class Study(Section):
    """A figure with its table. Only what studies need is computed."""

    kind: KindName = Field(
        description="Kind of figure: "
        + "; ".join(f"{name} ({kind.about})" for name, kind in KINDS.items())
        + "."
    )
    title: str | None = ""
    """Title of the figure; empty for the kind's own, null for none."""
    published: Name | None = None
    """Published tables to draw in place of the config's models."""
    models: SomeOf[Name] | None = None
    """Models, in the order of the panels; null for all."""
    revisions: Literal["last", "all"] | SomeOf[Name] | None = None
    """Checkpoints: last, all, or a list; null for the last of each model, or all in studies of
    checkpoints."""
    corpora: SomeOf[Name] | None = None
    """Corpora of the metrics; null for all. 'task texts' compares each task with the metrics on
    its own texts."""
    tasks: SomeOf[Name] | None = None
    """Tasks of the mean score; null for all."""
    task_types: SomeOf[str] | None = None
    """Task types of the mean score, such as STS; null for all."""
    tokens: SomeOf[Tokens] | None = None
    """Token selections; null for all that are extracted."""
    pooling: str | SomeOf[str] = "mean"
    """Pooling of the scores, as in scoring.poolings; 'mean, residual' is without the final norm,
    where both readouts are scored."""
    sublayers: SomeOf[Literal["block", Sublayer]] | None = None
    """Sub-layers to show; block is the layer itself. null for the layers, or for all sub-layers
    where sublayer has a role."""
    y: SomeOf[Literal["scores", "metrics"]] | None = None
    """Tables that the kind curves draws; null for the metrics."""
    metrics: Annotated[tuple[str | MetricChoice, ...], Field(min_length=1)] | None = None
    """Metrics to draw, by name or as a mapping that also names the variant; null for the kind's
    default."""
    protocol: PublishedProtocol | SomeOf[PublishedProtocol] | None = None
    """Protocol of metrics given by name only; null for paper, or the only one that is computed. A
    list needs a role, here and below."""
    alpha: Alpha | SomeOf[Alpha] | None = None
    """Alpha of metrics given by name only; null for 1, or the only one that is computed. Metrics
    without an alpha ignore it."""
    normalization: Normalization | SomeOf[Normalization] | None = None
    """Normalisation of metrics given by name only; null for raw."""
    measure: Measure | Literal["all"] | None = None
    """Association shown in metric_vs_score ('all' shows every one) and association_strength; null
    for r, the partial correlation given depth."""
    over: Over = "layers"
    """layers: association of a metric's curve with the mean score. tasks: association over tasks
    within each layer, averaged over layers; needs the corpus 'task texts'."""
    row: Role = None
    """Dimensions of the rows of panels."""
    column: Role = None
    """Dimensions of the columns of panels."""
    colour: Role = None
    """Dimensions that colours show."""
    dashes: Role = None
    """Dimensions that dashes show."""
    ordered: bool = False
    """Use a sequential colour scale, as for models of increasing size; checkpoints and alphas
    always have one."""
    sizes: dict[Name, Annotated[float, Field(gt=0)]] | None = None
    """Numbers of parameters by model, for size_scaling; null to read them from the models' names
    (pythia-410m)."""

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The roles that the study assigns, each with its dimensions."""
        given = {role: getattr(self, role) for role in ROLES}
        return {r: several(v) for r, v in given.items() if v is not None}

    @property
    def curves(self) -> tuple[MetricChoice, ...] | None:
        """The metrics shown, one for each protocol, alpha and normalisation; None for all."""
        names: Sequence[str | MetricChoice] | None = self.metrics
        if names is None:
            names = KINDS[self.kind].metrics
        return None if names is None else self.variants(names)

    def variants(self, names: Iterable[str | MetricChoice]) -> tuple[MetricChoice, ...]:
        """Metrics in the study's protocols, alphas and normalisations where they name none."""
        found: list[MetricChoice] = []
        for name in names:
            one = MetricChoice(metric=name) if isinstance(name, str) else name
            given = [several(getattr(one, k) or getattr(self, k)) or (None,) for k in VARIANT]
            found += (
                one.model_copy(update=dict(zip(VARIANT, variant, strict=True)))
                for variant in itertools.product(*given)
            )
        return tuple(found)


def several(value: Any) -> tuple[Any, ...]:
    """One value or several values as a tuple; empty for None."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | float | int) else tuple(value)
