"""How metrics are to be computed: the config's key ``metrics``, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from layerwise.errors import LayerwiseError, closest
from layerwise.metrics.registry import NORMALIZATIONS, PROTOCOLS, all_metrics

PAIRS = ("augmented", "original")


@dataclass(frozen=True)
class Settings:
    """Settings of all metrics.

    Attributes
    ----------
    metrics : tuple of str, optional
        Which to compute; all by default.
    protocols : tuple of str
        Of ``paper`` and ``reference``.
    tokens : tuple of str, optional
        Which choices of tokens; by default all that the activations file has.
    sublayers : tuple of str, optional
        Which parts of each block beside ``block``, the layers themselves; by default all that the
        activations file has.
    alphas : tuple of float
        Orders of the entropies, above 0, infinity included.
    normalizations : tuple of str
        Which normalisations of the entropies are written, beside ``raw``.
    pair : str
        The two views of InfoNCE and DiME: ``augmented`` (views 1 and 2) or ``original`` (the
        prompt and view 1).
    dime_permutations : int
        Random permutations of the samples behind DiME's expectation.
    infonce_temperature : float
        Temperature τ of InfoNCE.
    lidar_delta : float
        δ, added to the diagonal of LiDAR's within-class scatter.
    alpha_req_ranks : (int, int)
        First and last rank of the eigenvalues to which α-ReQ fits its line.
    two_nn_discard : float
        Share of the largest distance ratios that TwoNN leaves out.
    stderr_groups : int
        Groups of the delete-a-group jackknife.
    seed : int
        Of permutations and groups. The same permutations serve every layer, so that curves over
        depth are not roughened by them.
    """

    metrics: tuple[str, ...] | None = None
    protocols: tuple[str, ...] = PROTOCOLS
    tokens: tuple[str, ...] | None = None
    sublayers: tuple[str, ...] | None = None
    alphas: tuple[float, ...] = (1.0, 2.0, math.inf)
    normalizations: tuple[str, ...] = NORMALIZATIONS
    pair: str = "augmented"
    dime_permutations: int = 10
    infonce_temperature: float = 0.1
    lidar_delta: float = 1e-4
    alpha_req_ranks: tuple[int, int] = (11, 500)
    two_nn_discard: float = 0.1
    stderr_groups: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises
        ------
        LayerwiseError
            Naming the key, what came and what is accepted.
        """
        if self.metrics is not None:
            _among("metrics", self.metrics, tuple(all_metrics()))
        _among("protocols", self.protocols, PROTOCOLS)
        _among("normalizations", self.normalizations, NORMALIZATIONS)
        _among("pair", (self.pair,), PAIRS)
        first, last = self.alpha_req_ranks
        for key, accepted, good in (
            ("alphas", "numbers above 0, or 'inf'", all(a > 0 for a in self.alphas)),
            ("dime_permutations", "1 or more", self.dime_permutations >= 1),
            ("infonce_temperature", "above 0", self.infonce_temperature > 0),
            ("lidar_delta", "above 0", self.lidar_delta > 0),
            ("alpha_req_ranks", "two ranks, 1 <= first < last", 1 <= first < last),
            ("two_nn_discard", "at least 0 and below 1", 0 <= self.two_nn_discard < 1),
            ("stderr_groups", "2 or more", self.stderr_groups >= 2),
        ):
            if not good:
                raise LayerwiseError(
                    f"metrics.{key} is {getattr(self, key)!r} in the config; "
                    f"accepted is: {accepted}."
                )

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Settings:
        """Settings from the config's key ``metrics``; what is not named keeps its default.

        Raises
        ------
        LayerwiseError
            For an unknown key or a value that is not accepted.
        """
        known = {f.name for f in fields(cls)}
        for key in given:
            if key not in known:
                raise LayerwiseError(
                    f"metrics.{key} is no setting{closest(key, known)}; "
                    f"known are {', '.join(sorted(known))}."
                )
        made: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        if "alphas" in made:
            made["alphas"] = tuple(_number("alphas", a) for a in made["alphas"])
        return cls(**made)


def _among(key: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise LayerwiseError(
                f"metrics.{key} names {name!r}{closest(name, known)}; "
                f"known are {', '.join(known)}."
            )


def _number(key: str, value: Any) -> float:
    """A number from JSON, which has no infinity: ``"inf"`` stands for it."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise LayerwiseError(
            f"metrics.{key} holds {value!r} in the config; accepted are numbers and 'inf'."
        ) from error
