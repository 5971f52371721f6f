"""The studies of a config: what each shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from layerwise.config.association import OWN_TEXTS, Direction, Measure
from layerwise.config.base import Alpha, Name, Section, SomeOf, later
from layerwise.config.kinds import (
    KINDS,
    ROLES,
)
from layerwise.config.scoring import Layers
from layerwise.vocabulary import Normalization, Protocol, Sublayer, Tokens

if TYPE_CHECKING:
    KindName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]


Role = str | SomeOf[str] | None


class MetricChoice(Section):
    """One metric in one variant."""

    metric: str = Field(description="Name of the metric.")
    protocol: Protocol | None = Field(
        default=None, description="Formulas as printed (paper), or as the released code has them."
    )
    alpha: Alpha | None = Field(
        default=None, description="Order of the entropy; inf for infinity."
    )
    normalization: Normalization | None = Field(
        default=None, description="Normalisation of the entropy."
    )
    direction: Direction | None = Field(
        default=None,
        description="1 if higher is better, -1 if lower, in this study; by default what "
        "association.directions says, and else what the metric declares.",
    )


class Study(Section):
    """A figure with its table. What it needs of models, corpora and tasks is computed, no more."""

    gone: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("resamples", "seed"),
        "bands over tasks are Student's, not percentiles of a bootstrap",
    )

    kind: KindName = Field(
        description="Which figure: "
        + "; ".join(f"{name} ({kind.about})" for name, kind in KINDS.items())
        + "."
    )
    title: str | None = Field(
        default="",
        description="Title of the figure; empty for the kind's own, null for none.",
        json_schema_extra=later(""),
    )
    published: Name | None = Field(
        default=None,
        description="Draw these published tables, in place of the config's own models.",
    )
    models: SomeOf[Name] | None = Field(
        default=None,
        description="Models, in the order of the panels; null for all that the config has.",
    )
    revisions: Literal["last", "all"] | SomeOf[Name] | None = Field(
        default=None,
        description="Checkpoints: last, all, or a list; null for the last of each model, or all "
        "in studies of checkpoints. The order is that of the models' own lists.",
    )
    corpora: SomeOf[Name] | None = Field(
        default=None,
        description="Corpora the metrics are computed on; null for all. 'task texts' stands for "
        "all corpora that are a task's own texts: each task is then set against the metrics on "
        "its texts.",
    )
    tasks: SomeOf[Name] | None = Field(
        default=None, description="Tasks that the mean score is over; null for all of the config."
    )
    task_types: SomeOf[str] | None = Field(
        default=None,
        description="Task types that the mean score is over, such as STS; null for all.",
    )
    tokens: SomeOf[Tokens] | None = Field(
        default=None, description="Token choices to show; null for all that were extracted."
    )
    pooling: str | SomeOf[str] = Field(
        default="mean",
        description="How the scored embeddings were pooled, as in scoring.poolings; 'mean, "
        "final_norm' is that readout where several were scored. Several are told apart as "
        "representations.",
    )
    layers: SomeOf[Layers] | None = Field(
        default=None,
        description="Which layers were read together for the scores, as in scoring.layers; null "
        "for one, the layer itself, or for all that are scored where layers has a role.",
        json_schema_extra=later(None),
    )
    sublayers: SomeOf[Literal["block", Sublayer]] | None = Field(
        default=None,
        description="Parts of blocks in place of the layers themselves (block); null for the "
        "layers, or for all parts where sublayer has a role.",
    )
    y: SomeOf[Literal["scores", "metrics"]] | None = Field(
        default=None, description="What studies of the kind curves draw; null for the metrics."
    )
    metrics: Annotated[tuple[str | MetricChoice, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Metrics to draw, by name or as an object that also names the variant; null "
        "for the kind's own choice.",
    )
    protocol: Protocol | SomeOf[Protocol] | None = Field(
        default=None,
        description="Protocol of the metrics given by name alone; null for paper, or the only one "
        "that is computed. A list needs a role, as it does below.",
    )
    alpha: Alpha | SomeOf[Alpha] | None = Field(
        default=None,
        description="Alpha of the metrics given by name alone; null for 1, or the only one that "
        "is computed. Metrics without an alpha are drawn whatever it is.",
    )
    normalization: Normalization | SomeOf[Normalization] | None = Field(
        default=None, description="Normalisation of the metrics given by name alone; null for raw."
    )
    measure: Measure | Literal["all"] | None = Field(
        default=None,
        description="Association written above the panels of metric_vs_score ('all' writes every "
        "one), or drawn by association_strength; null for the first of association.measures.",
    )
    row: Role = Field(default=None, description="Dimension, or dimensions, of the rows of panels.")
    column: Role = Field(
        default=None, description="Dimension, or dimensions, of the columns of panels."
    )
    colour: Role = Field(default=None, description="Dimension, or dimensions, that colours mean.")
    dashes: Role = Field(default=None, description="Dimension, or dimensions, that dashes mean.")
    ordered: bool = Field(
        default=False,
        description="Whether what the colours mean are steps of one thing, such as models ever "
        "larger, and gets an ordered scale; checkpoints and alphas always do.",
    )
    sizes: dict[Name, Annotated[float, Field(gt=0)]] | None = Field(
        default=None,
        description="Numbers of parameters by model, for size_scaling; null to read them off the "
        "models' names (pythia-410m).",
        json_schema_extra=later(None),
    )

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The roles that the study itself gives, each with its dimensions."""
        given = {role: getattr(self, role) for role in ROLES}
        return {r: several(v) for r, v in given.items() if v is not None}

    @property
    def curves(self) -> tuple[MetricChoice, ...] | None:
        """The metrics shown, in the study's variant where they name none; None for all there are.

        A metric stands there once for each protocol, alpha and normalisation of the study.
        """
        names: Sequence[str | MetricChoice] | None = self.metrics
        if names is None:
            names = KINDS[self.kind].metrics
        return None if names is None else self.variants(names)

    def variants(self, names: Iterable[str | MetricChoice]) -> tuple[MetricChoice, ...]:
        """Metrics in the study's variant, or variants, where they name none."""
        found = []
        for name in names:
            one = MetricChoice(metric=name) if isinstance(name, str) else name
            for protocol in several(one.protocol or self.protocol) or (None,):
                for alpha in several(one.alpha or self.alpha) or (None,):
                    for normal in several(one.normalization or self.normalization) or (None,):
                        variant = {"protocol": protocol, "alpha": alpha, "normalization": normal}
                        found.append(one.model_copy(update=variant))
        return tuple(found)

    @property
    def directions(self) -> dict[str, int]:
        """The better ends that the study itself gives."""
        chosen = [m for m in self.metrics or () if isinstance(m, MetricChoice)]
        return {m.metric: m.direction for m in chosen if m.direction is not None}


def several(value: Any) -> tuple[Any, ...]:
    """One value or several of them, as a tuple; empty for None."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def corpora_of(
    study: Study, known: Sequence[str], own_texts: Mapping[str, str]
) -> tuple[str, ...]:
    """The corpora whose metrics a study reads, `OWN_TEXTS` spelled out.

    Without any named, all that there are.
    """
    found: dict[str, None] = {}
    for name in study.corpora or tuple(known):
        found.update(dict.fromkeys(own_texts if name == OWN_TEXTS else (name,)))
    return tuple(found)


def revisions_of(study: Study, checkpoints: Sequence[str]) -> tuple[str, ...]:
    """The checkpoints of one model that a study shows, in the model's own order."""
    wanted = study.revisions or KINDS[study.kind].revisions
    if wanted == "last":
        return tuple(checkpoints[-1:])
    return tuple(r for r in checkpoints if wanted == "all" or r in wanted)
