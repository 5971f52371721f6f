"""The kinds of studies: which tables each reads, and what its panels, colours and dashes mean.

A kind is a name for defaults. A *role* is a place in a figure that can tell values of a dimension
apart: ``row`` and ``column`` of panels, ``colour`` and ``dashes`` of lines. A study may give each
role another dimension. What has no role must have one value: nothing is pooled, but scores over
tasks, whose mean is what is drawn. Importing this costs nothing: plans use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from layerwise.errors import LayerwiseError
from layerwise.vocabulary import LABELS

if TYPE_CHECKING:
    from layerwise.config.studies import Study

# The dimensions of the tidy tables. `y` is what is drawn: the score, or one of the metrics;
# `representation` is tokens and pooling (with the readout) together, `layers` which layers are read
# together.
DIMENSIONS = (
    "y", "model", "revision", "corpus", "task", "task_type", "representation", "tokens", "pooling",
    "layers", "sublayer", "protocol", "alpha", "normalization",
)  # fmt: skip
# A dimension whose values also say those of others.
PARTS = {"representation": ("tokens", "pooling"), "task": ("task_type",), "corpus": LABELS}
POOLED = ("task", "task_type")  # the mean over tasks is what "the score" means

ROLES = ("row", "column", "colour", "dashes")
PANELS = ("row", "column")

# What a study shows that names no metrics: one each of the paper's three families.
SHOWN = ("prompt_entropy", "curvature", "infonce")

Roles = Mapping[str, tuple[str, ...]]

OVER_TRAINING: Roles = {
    "row": ("y",), "column": ("model", "representation"), "colour": ("revision",)
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of study.

    Attributes
    ----------
    about : str
        One line for people.
    needs : tuple of str
        The tables it reads, of metrics, prompts, positions, scores, associations, selections,
        similarities, probes, and texts of a corpus.
    published : tuple of str
        The tables it reads of published results, if others.
    roles : mapping of role to dimensions
    takes : tuple of str
        The roles that a study may give other dimensions.
    over : mapping of role to dimensions, optional
        The roles where a model is shown at several checkpoints. None: the kind has no place for
        several, and a study of it is refused unless it gives `revision` a role itself.
    revisions : ``last`` or ``all``
        The checkpoints shown where the study names none.
    metrics : tuple of str or None
        The metrics shown where the study names none; None takes all there are.
    one : tuple of str
        Dimensions that must have one value although they have a role.
    checkpoints : bool
        Whether it shows models with two or more checkpoints alone.
    points : int
        Fewest models and checkpoints together.
    """

    about: str
    needs: tuple[str, ...] = ()
    roles: Roles = field(default_factory=dict)
    takes: tuple[str, ...] = ROLES
    over: Roles | None = None
    revisions: Literal["last", "all"] = "last"
    metrics: tuple[str, ...] | None = SHOWN
    one: tuple[str, ...] = ()
    checkpoints: bool = False
    points: int = 1
    published: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "curves": Kind(
        "scores, metrics or both by depth, with roles that the study chooses",
        ("metrics",),
        {"column": ("y",), "colour": ("model",), "dashes": ("representation",)},
    ),
    "score_by_depth": Kind(
        "mean task score by depth, a panel per model",
        ("scores",),
        {"column": ("model",), "dashes": ("representation",)},
        over={"column": ("model", "representation"), "colour": ("revision",)},
        metrics=(),
    ),
    "metrics_by_depth": Kind(
        "metrics by depth, models compared",
        ("metrics",),
        {"column": ("y",), "row": ("representation",), "colour": ("model",)},
        over=OVER_TRAINING,
    ),
    "metrics_over_checkpoints": Kind(
        "metrics by depth, a line per checkpoint",
        ("metrics",), OVER_TRAINING, over=OVER_TRAINING, revisions="all", checkpoints=True,
    ),
    "model_overview": Kind(
        "score and all metrics of one model by depth",
        ("metrics", "scores"),
        {"column": ("y",), "dashes": ("representation",)},
        metrics=None,
    ),
    "token_selection": Kind(
        "metrics and scores by depth for each token selection, with paired score differences",
        ("metrics", "scores"),
        {"row": ("y",), "column": ("model",), "dashes": ("representation",)},
        metrics=("prompt_entropy",),
    ),
    "checkpoint_heatmap": Kind(
        "a metric by layer and checkpoint",
        ("metrics",),
        {"row": ("y",), "column": ("model", "representation"), "x": ("revision",)},
        takes=PANELS, over={"row": ("y",), "column": ("model", "representation"), "x": ("revision",)},
        revisions="all", metrics=("prompt_entropy",), checkpoints=True,
    ),
    "scores_over_checkpoints": Kind(
        "task score by layer and checkpoint, with the best layer and its gain over the output",
        ("scores",),
        {"column": ("model", "representation"), "x": ("revision",)},
        takes=("column",), over={"column": ("model", "representation"), "x": ("revision",)},
        revisions="all", metrics=(), checkpoints=True,
    ),
    "task_heatmap": Kind(
        "score of each task by depth, relative to the model's output",
        ("scores",),
        {"column": ("model", "representation"), "y": ("task",)},
        takes=PANELS, over={"column": ("model", "revision", "representation"), "y": ("task",)},
        metrics=(),
    ),
    "metric_vs_score": Kind(
        "metric against score, a point per layer",
        ("metrics", "scores", "associations"),
        {"row": ("model",), "column": ("tokens", "pooling", "y")},
        takes=PANELS,
        over={"row": ("model", "revision"), "column": ("tokens", "pooling", "y")},
    ),
    "layer_selection": Kind(
        "score lost by selecting the layer with a metric, without labels",
        ("selections",),
        {"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
        takes=(), metrics=None,
    ),
    "association_strength": Kind(
        "association of each metric with the task score, and of baselines",
        ("associations",),
        {"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
        takes=(), metrics=None,
    ),
    "probes_by_depth": Kind(
        "linear probes of your own labels by depth, with their control and selectivity",
        ("probes",),
        {"row": ("model", "representation"), "column": ("task",)},
        takes=(), metrics=(),
    ),
    "bimodality": Kind(
        "a metric over prompts by depth: one mode or two, and how two groups of prompts differ",
        ("prompts", "texts"),
        {"column": ("model", "representation")},
        takes=PANELS, over={"column": ("model", "revision", "representation")},
        metrics=("prompt_entropy",), one=("y",),
    ),
    "along_sequence": Kind(
        "entropy of a prompt's first t tokens, or norm of its t-th token, by t",
        ("positions",),
        {"row": ("y",), "column": ("model", "representation"), "x": ("position",)},
        takes=PANELS, over={"row": ("y",), "column": ("model", "revision", "representation"),
                            "x": ("position",)},
        metrics=("prefix_entropy",),
    ),
    "sublayers": Kind(
        "a metric at each sublayer, and the change that mixer and MLP make in each block",
        ("prompts",),
        {"column": ("model", "representation"), "colour": ("sublayer",)},
        takes=(), over={"column": ("model", "revision", "representation"), "colour": ("sublayer",)},
        metrics=("prompt_entropy",), one=("y",),
    ),
    "attention_sink": Kind(
        "a metric by depth with and without sink tokens, and the share of its valley that they cause",
        ("prompts",),
        {"column": ("model",), "dashes": ("tokens",)},
        takes=(), over={"column": ("model",), "x": ("revision",), "dashes": ("tokens",)},
        metrics=("prompt_entropy",), one=("y",),
    ),
    "layer_similarity": Kind(
        "CKA and RSA between all layers of models and checkpoints",
        ("similarities",),
        {"row": ("model", "revision"), "column": ("representation",)},
        takes=(), over={"row": ("model", "revision"), "column": ("representation",)}, metrics=(),
    ),
    "finetuning_effects": Kind(
        "difference of models or checkpoints from the first, paired by prompt",
        ("prompts", "similarities"),
        {"row": ("y",), "column": ("model", "representation")},
        takes=(), over={"row": ("y",), "column": ("model", "revision", "representation")},
        metrics=("prompt_entropy", "effective_rank", "curvature"), points=2,
    ),
    "size_scaling": Kind(
        "depth and place of the compression valley by number of parameters",
        ("prompts",),
        {"row": ("y",), "column": ("representation",), "colour": ("model",)},
        takes=(), metrics=("prompt_entropy",), published=("metrics",),
    ),
    "training_dynamics": Kind(
        "change of each layer between checkpoints, with valley, sink and scores",
        ("prompts", "scores"),
        {"column": ("model", "representation"), "x": ("revision",)},
        takes=(), over={"column": ("model", "representation"), "x": ("revision",)},
        revisions="all", metrics=("prompt_entropy",), one=("y",), checkpoints=True,
    ),
    "alpha_robustness": Kind(
        "an entropy by depth at every order alpha, beside power-law spectra",
        ("prompts", "scores"),
        {"column": ("model", "representation"), "colour": ("alpha",)},
        takes=(), metrics=("prompt_entropy",), one=("y",),
    ),
    "power_law": Kind(
        "entropy of power-law spectra; needs no data", takes=(), metrics=()
    ),
}  # fmt: skip


def needs(study: Study) -> tuple[str, ...]:
    """The tables that a study reads; `y` of a study of curves decides."""
    kind = KINDS[study.kind]
    return study.y or (kind.published if study.published and kind.published else kind.needs)


def roles_of(study: Study, *, several: bool) -> dict[str, tuple[str, ...]]:
    """The dimensions of each role: the study's own, and the kind's for the rest.

    A dimension that the study moves to another role leaves the one it has by default.

    Parameters
    ----------
    several : bool
        Whether a model is shown at several checkpoints.

    Raises
    ------
    LayerwiseError
        If the study gives a role that its kind does not have, or a dimension two roles, or
        nothing in it can tell checkpoints apart.
    """
    kind = KINDS[study.kind]
    own = study.roles
    for role in own:
        if role not in kind.takes:
            raise LayerwiseError(
                f"A study of kind {study.kind} cannot choose its {role}; it takes "
                f"{', '.join(kind.takes) or 'no roles'}."
            )
    placed = [d for dimensions in own.values() for d in dimensions]
    for dimension in placed:
        if placed.count(dimension) > 1:
            raise LayerwiseError(
                f"A study of kind {study.kind} gives {dimension} two roles; one is enough."
            )
    for role in ("colour", "dashes"):
        if "y" in own.get(role, ()):
            raise LayerwiseError(
                f"y cannot be the {role}: scores and metrics have units of their own; make it the "
                "row or the column."
            )
    default: Roles = kind.roles
    if several and "revision" not in placed:
        if kind.over is None:
            others = ", ".join(k for k, v in KINDS.items() if v.over is not None)
            mend = " or give revision a role" if kind.takes else ""
            raise LayerwiseError(
                f"A study of kind {study.kind} shows one checkpoint of a model, and this one has "
                f"several; name one under `revisions`{mend}, or take one of the kinds {others}."
            )
        default = kind.over
    rest = {r: tuple(d for d in v if d not in placed) for r, v in default.items() if r not in own}
    return {**rest, **own}


def without_role(values: Mapping[str, int], roles: Roles) -> list[str]:
    """The dimensions that have several values and no role.

    Parameters
    ----------
    values : mapping of dimension to number of values
    """
    placed = {d for dimensions in roles.values() for d in dimensions}
    placed |= {part for d in placed for part in PARTS.get(d, ())}
    placed |= {d for d, parts in PARTS.items() if placed.issuperset(parts)}
    return [d for d, n in values.items() if n > 1 and d not in placed and d not in POOLED]


def refuse(study: Study, dimension: str, values: object) -> LayerwiseError:
    """The error for a dimension without a role, to be raised."""
    kind = KINDS[study.kind]
    names = NAMES.get(dimension, dimension)
    mend = f", or give {dimension} a role ({', '.join(kind.takes)})" if kind.takes else ""
    return LayerwiseError(
        f"A study of kind {study.kind} would mix several values of {dimension}: {values}; name "
        f"one under `{names}`{mend}."
    )


# Where a study names the values of a dimension.
NAMES = {
    "model": "models", "revision": "revisions", "corpus": "corpora", "tokens": "tokens",
    "sublayer": "sublayers", "y": "metrics", "representation": "tokens", "task": "tasks",
    "task_type": "task_types", "layers": "layers",
}  # fmt: skip

# What a role is called on the page of kinds.
PLACES = {"row": "row of panels", "column": "panel", "colour": "colour", "dashes": "dash style",
          "x": "place on the x-axis", "y": "place on the y-axis"}  # fmt: skip


def checkpoints_said(kind: Kind) -> str:
    """What a kind does with several checkpoints of a model, in a sentence."""
    if not kind.needs:
        return "Needs no model."
    if kind.over is None:
        mend = ", unless the study gives `revision` a role" if kind.takes else ""
        return f"Refused when the config is read{mend}."
    place = next(PLACES[role] for role, found in kind.over.items() if "revision" in found)
    shown = (
        "all, unless `revisions` names some" if kind.revisions == "all"
        else "the last alone, unless `revisions` asks for more"
    )  # fmt: skip
    least = "; a model needs two or more" if kind.checkpoints else ""
    return f"A {place} for each: {shown}{least}."


def kinds_table() -> str:
    """Every kind of study as a Markdown table, for the docs."""
    rows = ["| kind | what it shows | several checkpoints of a model | roles a study may change |",
            "|---|---|---|---|"]  # fmt: skip
    for name, kind in KINDS.items():
        roles = ", ".join(f"`{role}`" for role in kind.takes if kind.needs) or "none"
        rows.append(f"| `{name}` | {kind.about} | {checkpoints_said(kind)} | {roles} |")
    return "\n".join(rows)
