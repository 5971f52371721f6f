"""Names of models, revisions, corpora, tasks and studies: in paths, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    import pandas as pd

# File systems take 255 bytes; a suffix, and the mark of a file that is being written, come on top.
LONGEST = 150


def encode(name: str) -> str:
    """Percent-encode a name as one path component; `decode` is the inverse.

    Letters, digits and ``_ - ~ .`` stay readable. A leading dot is encoded, so no file is hidden.

    Raises
    ------
    LayerwiseError
        For an empty name, one with a NUL or a ``..`` component, or one too long for a file name.
    """
    quoted = quote(name, safe="", errors="surrogatepass")
    quoted = "%2E" + quoted[1:] if quoted.startswith(".") else quoted
    if not 0 < len(quoted) <= LONGEST or "\0" in name or ".." in re.split(r"[/\\]", name):
        raise LayerwiseError(
            f"{name[:40]!r} cannot be the name of a model, revision, corpus, task or study: it "
            f"must have 1 to {LONGEST} characters in a path, and no '..' as a part.",
            code="bad_name",
        )
    return quoted


def decode(component: str) -> str:
    """The name that `encode` turned into this path component."""
    return unquote(component, errors="surrogatepass")


PATHS = {
    "metrics": "metrics/{model}/{revision}/{corpus}.parquet",
    "prompts": "metrics/{model}/{revision}/{corpus}.prompts.parquet",
    "positions": "metrics/{model}/{revision}/{corpus}.positions.parquet",
    "scores": "scores/{model}/{revision}.parquet",
    "texts": "corpora/{corpus}.parquet",
    "associations": "associations/{study}.parquet",
    "selections": "selections/{study}.parquet",
    "similarities": "similarities/{study}.parquet",
    "activations": "activations/{model}/{revision}/{corpus}.h5",
}
"""The files that studies read, below the results folder: those of the rules in workflow/rules."""
RESERVED = (".views", ".prompts", ".positions")
"""Endings of the files that belong to a corpus or its metrics."""


def path_of(table: str, **names: str) -> str:
    """A path of `PATHS`, for names of the config."""
    return PATHS[table].format(**{kind: encode(name) for kind, name in names.items()})


# Steps of training

_STEP = re.compile(r"step[-_]?(\d+)", re.IGNORECASE)
_CHECKPOINT = re.compile(r"(?:(?:checkpoint|ckpt|iter|global_step)[-_]?)?(\d+)", re.IGNORECASE)


def step_of(revision: str) -> int | None:
    """The training step in a revision's name, or None.

    ``step512``, ``checkpoint-512``, ``512`` and ``stage1-step512-tokens3B`` give 512. ``main``,
    versions such as ``v2`` and names such as ``e5`` give None.
    """
    match = _STEP.search(revision) or _CHECKPOINT.fullmatch(revision)
    return int(match.group(1)) if match else None


def order_key(revision: str) -> tuple[bool, int, str]:
    """Sort key: by step; names without a step (``main``) come last, as the finished model."""
    step = step_of(revision)
    return step is None, step or 0, revision


# Numbers of parameters

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s?([mb])(?![A-Za-z])", re.IGNORECASE)
UNITS = {"m": 1e6, "b": 1e9}


def size_of(name: str) -> float | None:
    """The number of parameters in a model's name, ``pythia-410m`` or ``Llama-3-8B``.

    None if the name has no such number, or several: one may be a number of tokens.
    """
    sizes = {float(number) * UNITS[unit.lower()] for number, unit in _SIZE.findall(name)}
    return sizes.pop() if len(sizes) == 1 else None


# Order of models and checkpoints


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
    copies : mapping of model to model
        Models with the weights of an earlier one, which do not count as further models.
    """

    models: Sequence[str] = ()
    revisions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any) -> Order:
        """The order of a `layerwise.config.Config`."""
        models = config.models
        studied = [m for study in config.studies.values() for m in study.models or ()]
        names = dict.fromkeys([*models, *studied])  # studies name published models as well
        return cls(tuple(names), {m: tuple(entry.revisions) for m, entry in models.items()})

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
        """The rows of each model's last checkpoint in the frame, without copies."""
        frame = frame[~frame["model"].isin([*self.copies])]
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
