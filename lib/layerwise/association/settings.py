"""The settings of the association, as the config has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from layerwise.association.measures import MEASURES, Measure, check_measure
from layerwise.errors import LayerwiseError, closest


@dataclass(frozen=True)
class AssociationSettings:
    """What to associate, and how chance is reckoned with.

    Attributes
    ----------
    measures : tuple of measures
    metrics, protocols, alphas, normalizations, poolings : tuple or None
        Which rows of the tables to take; None takes all.
    permutations : int
        Size of the permutation null. The default is 7!, so that curves of up to seven layers get
        all of their permutations.
    resamples : int
        Size of the bootstrap over tasks.
    baselines : bool
        Whether to add the pseudo-metrics ``layer index`` and ``distance from the middle``.
    pooled : bool
        Whether to add rows pooled over models, with the model as a block.
    own_texts : mapping of corpus to task
        Corpora that are a task's own texts.
    seed : int
    """

    measures: tuple[Measure, ...] = MEASURES
    metrics: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    alphas: tuple[float, ...] | None = None
    normalizations: tuple[str, ...] | None = ("raw",)
    poolings: tuple[str, ...] | None = None
    permutations: int = 5040
    resamples: int = 1000
    baselines: bool = True
    pooled: bool = True
    own_texts: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> AssociationSettings:
        """Settings from the config's `association`.

        Raises
        ------
        LayerwiseError
            For an unknown key, an unknown measure or a number out of range.
        """
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise LayerwiseError(
                    f"association has no setting {key!r}{closest(key, known)}; "
                    f"it takes {', '.join(known)}."
                )
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in given.items()
        }
        if "measures" in values:
            values["measures"] = tuple(check_measure(m) for m in values["measures"])
        if values.get("alphas") is not None:
            values["alphas"] = tuple(float(a) for a in values["alphas"])
        made = cls(**values)
        if made.permutations < 1 or made.resamples < 0:
            raise LayerwiseError(
                f"association.permutations is {made.permutations} and resamples "
                f"{made.resamples}; give at least 1 and 0."
            )
        return made
