"""Kinds of studies: the tables that each reads, and the roles of its dimensions.

A kind is a set of defaults. A *role* is a way in which a figure shows the values of a dimension:
``row`` and ``column`` of panels, ``colour`` and ``dashes`` of lines. A study may give each role
another dimension. A dimension without a role must have one value: a figure averages over tasks
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from layerwise.errors import LayerwiseError
from layerwise.vocabulary import LABELS

if TYPE_CHECKING:
    from layerwise.config.studies import Study

# The dimensions of the tidy tables. `y` is the score or a metric; `representation` is the token
# selection and the pooling, with the readout.
DIMENSIONS = (
    "y",
    "model",
    "revision",
    "corpus",
    "task",
    "task_type",
    "representation",
    "tokens",
    "pooling",
    "sublayer",
    "protocol",
    "alpha",
    "normalization",
)
# Dimensions whose values determine those of others.
PARTS = {"representation": ("tokens", "pooling"), "task": ("task_type",), "corpus": LABELS}
POOLED = ("task", "task_type")  # the mean over tasks is what "the score" means

ROLES = ("row", "column", "colour", "dashes")
PANELS = ("row", "column")

# One metric of each of the paper's three families.
SHOWN = ("prompt_entropy", "curvature", "infonce")

Roles = Mapping[str, tuple[str, ...]]

OVER_TRAINING: Roles = {
    "row": ("y",),
    "column": ("model", "representation"),
    "colour": ("revision",),
}


@dataclass(frozen=True)
class Kind:
    """A kind of study.

    Attributes
    ----------
    about : str
        One line for the docs and the schema.
    needs : tuple of str
        The tables it reads, of metrics, prompts, positions, scores, associations, selections,
        similarities, and texts of a corpus.
    published : tuple of str
        The published tables it reads, if they differ.
    roles : mapping of role to dimensions
    takes : tuple of str
        The roles that a study may change.
    over : mapping of role to dimensions, optional
        The roles if a model is shown at several checkpoints, if they differ. Without a role for
        `revision`, a study with several is refused unless it gives it one.
    revisions : ``last`` or ``all``
        The checkpoints of a study that names none.
    metrics : tuple of str or None
        The metrics of a study that names none; None for all.
    compares : tuple of str
        Dimensions that must have several values.
    checkpoints : bool
        True if it shows only models with two or more checkpoints.
    probes : bool
        True if it shows only tasks of own labels that a probe is trained for.
    """

    about: str
    needs: tuple[str, ...] = ()
    roles: Roles = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    over: Roles | None = None
    revisions: Literal["last", "all"] = "last"
    metrics: tuple[str, ...] | None = ("prompt_entropy",)
    compares: tuple[str, ...] = ()
    checkpoints: bool = False
    probes: bool = False
    published: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "curves": Kind(
        "scores, metrics or both by depth, with roles that the study chooses",
        ("metrics",),
        {"column": ("y",), "colour": ("model",), "dashes": ("representation",)},
        takes=ROLES,
        metrics=SHOWN,
    ),
    "score_by_depth": Kind(
        "mean task score by depth, a panel per model",
        ("scores",),
        {"column": ("model",), "dashes": ("representation",)},
        over={"column": ("model", "representation"), "colour": ("revision",)},
        takes=ROLES,
    ),
    "metrics_by_depth": Kind(
        "metrics by depth, models compared",
        ("metrics",),
        {"column": ("y",), "row": ("representation",), "colour": ("model",)},
        over=OVER_TRAINING,
        takes=ROLES,
        metrics=SHOWN,
    ),
    "metrics_over_checkpoints": Kind(
        "metrics by depth, a line per checkpoint",
        ("metrics",),
        OVER_TRAINING,
        revisions="all",
        checkpoints=True,
        takes=ROLES,
        metrics=SHOWN,
    ),
    "model_overview": Kind(
        "score and all metrics of one model by depth",
        ("metrics", "scores"),
        {"column": ("y",), "dashes": ("representation",)},
        metrics=None,
        takes=ROLES,
    ),
    "token_selection": Kind(
        "metrics and scores by depth for each token selection, with paired score differences",
        ("metrics", "scores"),
        {"row": ("y",), "column": ("model",), "dashes": ("representation",)},
        compares=("tokens",),
        takes=ROLES,
    ),
    "checkpoint_heatmap": Kind(
        "a metric by layer and checkpoint",
        ("metrics",),
        {"row": ("y",), "column": ("model", "representation"), "x": ("revision",)},
        takes=PANELS,
        revisions="all",
        checkpoints=True,
    ),
    "scores_over_checkpoints": Kind(
        "task score by layer and checkpoint, with the best layer and its gain over the output",
        ("scores",),
        {"column": ("model", "representation"), "x": ("revision",)},
        takes=("column",),
        revisions="all",
        checkpoints=True,
    ),
    "task_heatmap": Kind(
        "score of each task by depth, relative to the model's output",
        ("scores",),
        {"column": ("model", "representation"), "y": ("task",)},
        takes=PANELS,
        over={"column": ("model", "revision", "representation"), "y": ("task",)},
    ),
    "metric_vs_score": Kind(
        "metric against score, a point per layer",
        ("metrics", "scores", "associations"),
        {"row": ("model",), "column": ("tokens", "pooling", "y")},
        takes=PANELS,
        over={"row": ("model", "revision"), "column": ("tokens", "pooling", "y")},
        metrics=SHOWN,
    ),
    "layer_selection": Kind(
        "score lost by selecting the layer with a metric, without labels",
        ("selections",),
        {"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
        metrics=None,
    ),
    "association_strength": Kind(
        "association of each metric with the task score, and of baselines",
        ("associations",),
        {"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
        metrics=None,
    ),
    "probes_by_depth": Kind(
        "linear probes of your own labels by depth, with their control and selectivity",
        ("scores",),
        {"row": ("model", "representation"), "column": ("task",)},
        probes=True,
    ),
    "bimodality": Kind(
        "a metric over prompts by depth: one mode or two, and how two groups of prompts differ",
        ("prompts", "texts"),
        {"column": ("model", "representation")},
        takes=("column",),
        over={"column": ("model", "revision", "representation")},
    ),
    "along_sequence": Kind(
        "entropy of a prompt's first t tokens, or norm of its t-th token, by t",
        ("positions",),
        {"row": ("y",), "column": ("model", "representation"), "x": ("position",)},
        takes=PANELS,
        over={
            "row": ("y",),
            "column": ("model", "revision", "representation"),
            "x": ("position",),
        },
        metrics=("prefix_entropy",),
    ),
    "sublayers": Kind(
        "a metric at each sublayer, and the change that mixer and MLP make in each block",
        ("prompts",),
        {"column": ("model", "representation"), "colour": ("sublayer",)},
        over={"column": ("model", "revision", "representation"), "colour": ("sublayer",)},
        compares=("sublayer",),
    ),
    "attention_sink": Kind(
        "a metric by depth with and without sink tokens, and their share of its valley",
        ("prompts",),
        {"column": ("model",), "dashes": ("tokens",)},
        over={"column": ("model",), "x": ("revision",), "dashes": ("tokens",)},
        compares=("tokens",),
    ),
    "layer_similarity": Kind(
        "CKA and RSA between all layers of models and checkpoints",
        ("similarities",),
        {"row": ("model", "revision"), "column": ("representation",)},
        metrics=(),
    ),
    "finetuning_effects": Kind(
        "difference of models or checkpoints from the first, paired by prompt",
        ("prompts", "similarities"),
        {"row": ("y",), "column": ("model", "representation")},
        over={"row": ("y",), "column": ("model", "revision", "representation")},
        metrics=("prompt_entropy", "effective_rank", "curvature"),
    ),
    "size_scaling": Kind(
        "depth and place of the compression valley by number of parameters",
        ("prompts",),
        {"row": ("y",), "column": ("representation",), "colour": ("model",)},
        published=("metrics",),
    ),
    "training_dynamics": Kind(
        "change of each layer between checkpoints, with valley, sink and scores",
        ("prompts", "scores"),
        {"column": ("model", "representation"), "x": ("revision",)},
        revisions="all",
        checkpoints=True,
    ),
    "alpha_robustness": Kind(
        "an entropy by depth at every order alpha, beside power-law spectra",
        ("prompts",),
        {"column": ("model", "representation"), "colour": ("alpha",)},
    ),
    "power_law": Kind("entropy of power-law spectra; needs no data", metrics=()),
}


def needs(study: Study) -> tuple[str, ...]:
    """The tables that a study reads: those of `y`, if it has one, or of its kind."""
    kind = KINDS[study.kind]
    return study.y or (kind.published if study.published and kind.published else kind.needs)


def roles_of(study: Study, *, several: bool) -> dict[str, tuple[str, ...]]:
    """The dimensions of each role: the study's own, and the kind's for the rest.

    A dimension that the study moves to another role leaves the one it has by default.

    Parameters
    ----------
    several : bool
        True if a model is shown at several checkpoints.

    Raises
    ------
    LayerwiseError
        If the study uses a role that its kind lacks, or has no role for several checkpoints.
    """
    kind = KINDS[study.kind]
    own = study.roles
    for role in own:
        if role not in kind.takes:
            raise LayerwiseError(
                f"A study of kind {study.kind} cannot choose its {role}; it takes "
                f"{', '.join(kind.takes) or 'no roles'}.",
                code="unsupported",
            )
    placed = _placed(own)
    for role in ("colour", "dashes"):
        if "y" in own.get(role, ()):
            raise LayerwiseError(
                f"y cannot be the {role}, as scores and metrics differ in units; make it the "
                "row or the column.",
                code="unsupported",
            )
    default: Roles = kind.roles
    if several and "revision" not in placed:
        default = kind.over or kind.roles
        if "revision" not in _placed(default):
            others = [k for k, v in KINDS.items() if "revision" in _placed(v.over or v.roles)]
            hint = " or give revision a role" if kind.takes else ""
            raise LayerwiseError(
                f"A study of kind {study.kind} shows one checkpoint of a model, and this one has "
                f"several; name one under `revisions`{hint}, or use one of the kinds "
                f"{', '.join(others)}.",
                code="ambiguous",
            )
    rest = {r: tuple(d for d in v if d not in placed) for r, v in default.items() if r not in own}
    return {**rest, **own}


def _placed(roles: Roles) -> list[str]:
    return [dimension for dimensions in roles.values() for dimension in dimensions]


def without_role(values: Mapping[str, int], roles: Roles) -> list[str]:
    """The dimensions that have several values and no role.

    Parameters
    ----------
    values : mapping of dimension to number of values
    """
    placed = set(_placed(roles))
    placed |= {part for d in placed for part in PARTS.get(d, ())}
    placed |= {d for d, parts in PARTS.items() if placed.issuperset(parts)}
    return [d for d, n in values.items() if n > 1 and d not in placed and d not in POOLED]


def refuse(study: Study, dimension: str, values: object) -> LayerwiseError:
    """The error for a dimension without a role, to be raised."""
    kind = KINDS[study.kind]
    names = NAMES.get(dimension, dimension)
    hint = f", or give {dimension} a role ({', '.join(kind.takes)})" if kind.takes else ""
    return LayerwiseError(
        f"A study of kind {study.kind} would average over several values of {dimension}: "
        f"{values}; name one under `{names}`{hint}.",
        code="ambiguous",
    )


# Key of a study that names the values of a dimension.
NAMES = {
    "model": "models",
    "revision": "revisions",
    "corpus": "corpora",
    "tokens": "tokens",
    "sublayer": "sublayers",
    "y": "metrics",
    "representation": "tokens",
    "task": "tasks",
    "task_type": "task_types",
    "pooling": "pooling",
}
