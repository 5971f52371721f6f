"""The section ``metrics``: which are computed, and how.

What all metrics share is written here; what a metric has of its own is declared in its file
(`layerwise.metrics.registry.metric`, ``settings=``) and becomes a key of its name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from layerwise.config.base import Alpha, Distinct, Section, Seed, SomeOf
from layerwise.errors import closest
from layerwise.metrics.registry import (
    NORMALIZATIONS,
    all_metrics,
    sections,
)
from layerwise.vocabulary import Normalization, Protocol, Sublayer, Tokens


def _known(name: str) -> str:
    known = all_metrics()
    if name not in known:
        raise ValueError(
            f"no metric has that name{closest(name, known)}, known are {', '.join(known)}"
        )
    return name


MetricName = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": list(all_metrics())})
]


class Shared(Section):
    """What all metrics share."""

    metrics: SomeOf[MetricName] | None = Field(
        None,
        description="Names of the metrics to compute (docs/adding-a-metric.md lists them); null "
        "for all.",
    )
    protocols: SomeOf[Protocol] | None = Field(
        None,
        description="paper: the formulas as printed. reference: what the released code computes, "
        "to reproduce its curves. null for all that the extraction kept.",
    )
    tokens: SomeOf[Tokens] | None = Field(
        None,
        description="Which tokens of a prompt count, of those the extraction kept; null for all "
        "of these.",
    )
    sublayers: Distinct[Sublayer] | None = Field(
        None,
        description="Parts of each block to compute the metrics of, beside the layers "
        "themselves, of those the extraction kept; null for all of these.",
    )
    alphas: SomeOf[Alpha] = Field(
        (1.0, 2.0, math.inf),
        description="Orders of the matrix-based entropies, above 0; 'inf' stands for infinity. "
        "Each costs next to nothing.",
        # JSON has no infinity, so pydantic would show it as null.
        json_schema_extra={"default": [1, 2, "inf"]},
    )
    normalizations: Distinct[Normalization] = Field(
        NORMALIZATIONS,
        description="Normalisations of the entropies that are written beside raw, which always "
        "is.",
    )
    pair: Literal["augmented", "original"] = Field(
        "augmented",
        description="The two views that InfoNCE and DiME compare: the first two augmented ones, "
        "as in the paper, or the prompt and its first augmented view (also taken where there is "
        "only one).",
    )
    stderr_groups: int = Field(
        10,
        ge=2,
        le=1000,
        description="Groups of prompts behind the standard errors of DiME, InfoNCE, LiDAR and "
        "α-ReQ, and random halves behind that of TwoNN; the other metrics need none.",
    )
    seed: Seed = Field(
        0,
        description="Of permutations and groups. The same permutations serve every layer, so "
        "that they do not roughen curves over depth.",
    )


def build() -> type[Shared]:
    """The section, with a key for each metric that has settings of its own.

    Raises
    ------
    ValueError
        If a metric's section has the name of a shared setting: a mistake of its author.
    """
    own: dict[str, Any] = {}
    for name, section in sections().items():
        if name in Shared.model_fields:
            raise ValueError(
                f"metrics.{name} is a setting of all metrics; give the section another name"
            )
        about = (section.__doc__ or "").strip().split("\n")[0]
        own[name] = (section, Field(section(), description=about))
    return create_model("MetricsSettings", __base__=Shared, __module__=__name__, **own)


if TYPE_CHECKING:

    class MetricsSettings(Shared):
        """The section ``metrics``, made by `build`."""

        def __init__(self, **settings: Any) -> None: ...

else:
    MetricsSettings = build()
    MetricsSettings.__doc__ = "Which metrics are computed of the activations, and how."
