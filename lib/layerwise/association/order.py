"""The order of models and of their checkpoints: the config's, wherever there is a config."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from layerwise.names import order_key, size_of, step_of

if TYPE_CHECKING:
    from layerwise.config import Config


@dataclass(frozen=True)
class Order:
    """The order of the config.

    Attributes
    ----------
    models : sequence of str
        Fixes the models' colours: one colour per model in all figures.
    revisions : mapping of model to sequence of str
        Each model's checkpoints, first to last. Those of other models, as in tables read by hand
        without a config, are ordered by the step in their names (`order_key`).
    """

    models: Sequence[str] = ()
    revisions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Order:
        """The order of a config."""
        models = config.models
        return cls(tuple(models), {m: tuple(entry.revisions) for m, entry in models.items()})

    def checkpoints(self, model: str, there: Iterable[str]) -> list[str]:
        """Some checkpoints of a model, first to last.

        Those that the config does not name come first; the last one is of the config.
        """
        known = list(self.revisions.get(model, ()))
        names = sorted(set(there), key=order_key)
        return [n for n in names if n not in known] + [n for n in known if n in names]

    def shared(self, there: Mapping[str, Iterable[str]]) -> list[str]:
        """The checkpoints of several models, first to last.

        By step where names have one, the finished models last; else by their place in each model's
        own course.

        Parameters
        ----------
        there : mapping of model to its checkpoints
        """
        courses = [self.checkpoints(model, names) for model, names in there.items()]
        names = sorted({name for course in courses for name in course}, key=order_key)
        if not any(step_of(name) is None for course in courses for name in course[:-1]):
            return names
        places: dict[str, list[float]] = {name: [] for name in names}
        for course in courses:
            for place, name in enumerate(course):
                places[name].append(place / max(1, len(course) - 1))
        return sorted(names, key=lambda name: sum(places[name]) / len(places[name]))

    def only_last(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of each model's last checkpoint, of those that the frame has."""
        groups = frame.groupby("model")["revision"]
        last = {str(m): self.checkpoints(str(m), r)[-1] for m, r in groups}
        return frame[frame["revision"] == frame["model"].map(last)]


def in_order(present: Iterable[Hashable], order: Iterable[Hashable] | None) -> list[str]:
    """Names that are there, in the order asked for; the rest after them, see `by_size`."""
    there = [str(n) for n in present]
    first = [str(n) for n in dict.fromkeys(order or ()) if n in there]
    return first + sorted(set(there) - set(first), key=by_size)


def by_size(name: str) -> tuple[str, float, str]:
    """Sort key: by name, and models of one family by their number of parameters.

    ``Pythia-70m`` comes before ``Pythia-410m``, and ``Pythia-410m`` before ``Pythia-1b``.
    """
    size = size_of(name)
    family = re.sub(r"\d.*", "", name) if size else name
    return family, size or 0.0, name
