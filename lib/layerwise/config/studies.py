"""The studies of a config: what each shows, and whether the config can give it that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from layerwise.config.association import OWN_TEXTS, Direction, Measure
from layerwise.config.base import Alpha, Name, Section, SomeOf, later
from layerwise.config.scoring import Layers
from layerwise.errors import LayerwiseError, closest
from layerwise.figures.kinds import (
    DIMENSIONS,
    KINDS,
    ROLES,
    Kind,
    needs,
    refuse,
    roles_of,
    without_role,
)
from layerwise.vocabulary import ONE, Normalization, Protocol, Sublayer, Tokens

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
        "readings.",
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
    factors: dict[str, dict[str, SomeOf[Name]]] | None = Field(
        default=None,
        description="Of studies of kind factorial: two factors, each with two levels, each with "
        "its models.",
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


SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s?([kmbt])(?![A-Za-z])", re.IGNORECASE)
UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def size_of(name: str) -> float | None:
    """The number of parameters in a model's name, ``pythia-410m`` or ``Llama-3-8B``; else None."""
    found = SIZE.findall(name)
    return float(found[-1][0]) * UNITS[found[-1][1].lower()] if found else None


def several(value: Any) -> tuple[Any, ...]:
    """One value or several of them, as a tuple; empty for None."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Known:
    """What a config offers, per dimension; None where nobody knows, and nothing is checked.

    Attributes
    ----------
    models : mapping of model to its checkpoints, first to last
    corpora : sequence of str
    tasks : mapping of task to its type, or to None
    tokens : sequence of str
    poolings : sequence of str
        As `Study.pooling` names them: with the readout, if several are scored (``mean, output``).
    layers : sequence of str
        `scoring.layers`.
    sublayers : sequence of str
        Those extracted; with ``block``, which always is.
    protocols, alphas, normalizations : sequence
        Those computed.
    metrics : sequence of str
        Those computed, or computable from what is extracted.
    measures : sequence of str
        `association.measures`.
    own_texts : mapping of corpus to task
        Corpora whose source is a task, and `association.own_texts`.
    labels : mapping of corpus to what it is perturbed by
        Of the perturbed ones, such as ``{repetition: 0.5}``; further dimensions of metrics.
    """

    models: Mapping[str, Sequence[str]] | None = None
    corpora: Sequence[str] | None = None
    tasks: Mapping[str, str | None] | None = None
    tokens: Sequence[str] | None = None
    poolings: Sequence[str] | None = None
    layers: Sequence[str] | None = None
    sublayers: Sequence[str] | None = None
    protocols: Sequence[str] | None = None
    alphas: Sequence[float] | None = None
    normalizations: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    measures: Sequence[str] | None = None
    own_texts: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


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


def check(study: Study, known: Known) -> None:
    """Refuse a study that the config cannot feed, or that would mix what it has no place for.

    Raises
    ------
    LayerwiseError
        In one sentence: what is asked for, what there is, how to mend it.
    """
    kind = KINDS[study.kind]
    tables = needs(study)
    if "metrics" not in tables and "scores" not in tables and not kind.needs:
        return
    of_metrics = set(tables) & {
        "metrics", "prompts", "positions", "associations", "choices", "similarities",
    }  # fmt: skip
    of_scores = {"scores", "associations", "choices"} & set(tables)
    _something("models", known.models, study)
    _among("model", study.models, known.models)
    _dimensions(study, known)
    counts = _checkpoints(study, known, kind)
    if of_metrics:
        _something("corpora", known.corpora, study)
        counts |= _of_metrics(study, known)
    if of_scores:
        _something("tasks", known.tasks, study)
        _of_scores(study, known)
    _of_the_kind(study, known, kind)
    roles = roles_of(study, several="revision" in counts)
    if "sublayer" not in {d for v in roles.values() for d in v} and not study.sublayers:
        counts.pop("sublayer", None)
    if of_metrics:
        counts |= _labelled(study.corpora or tuple(known.corpora or ()), known, roles)
    tokens = study.tokens or known.tokens or ()
    poolings = several(study.pooling) if of_scores else ()
    counts |= {"tokens": tuple(tokens), "pooling": poolings, "layers": study.layers or ()}
    if study.kind in ("layer_choice", "association_strength", "beyond_depth"):
        counts.pop("tokens")  # every reading of its scores has a column
    for dimension in without_role({d: len(v) for d, v in counts.items()}, roles):
        raise refuse(study, dimension, _listed(counts[dimension]))


def _something(what: str, there: Any, study: Study) -> None:
    if there is not None and not there:
        raise LayerwiseError(
            f"A study of kind {study.kind} needs {what}, and the config has none."
        )


def _among(what: str, wanted: Any, there: Iterable[Any] | None) -> None:
    if there is None:
        return
    names = list(there)
    for name in several(wanted):
        if name not in names:
            near = closest(name, names) if isinstance(name, str) else ""
            raise LayerwiseError(
                f"This study asks for the {what} {_said(name)}{near}"
                f", and the config has {_listed(names) or 'none'}."
            )


def _dimensions(study: Study, known: Known) -> None:
    there = [*DIMENSIONS, *dict.fromkeys(d for own in known.labels.values() for d in own)]
    for role, dimensions in study.roles.items():
        for name in dimensions:
            if name not in there:
                raise LayerwiseError(
                    f"There is no dimension {name!r}{closest(name, there)} to be the {role}; "
                    f"there are {', '.join(there)}."
                )


def _checkpoints(study: Study, known: Known, kind: Kind) -> dict[str, tuple[Any, ...]]:
    if known.models is None:
        several_named = len(study.revisions or ()) if isinstance(study.revisions, tuple) else 0
        return {"revision": several(study.revisions)} if several_named > 1 else {}
    chosen = {m: known.models[m] for m in study.models or known.models}
    shown = {m: revisions_of(study, r) for m, r in chosen.items()}
    if isinstance(study.revisions, tuple):
        everywhere = dict.fromkeys(r for revisions in chosen.values() for r in revisions)
        _among("checkpoint", study.revisions, everywhere)
    empty = [m for m, r in shown.items() if not r]
    if empty and study.models is not None:
        raise LayerwiseError(
            f"{_listed(empty)} has none of the checkpoints {_listed(several(study.revisions))}; "
            "take it out of `models`, or name some of its checkpoints."
        )
    longest = max(shown.values(), key=len)
    if kind.checkpoints and len(longest) < 2:
        raise LayerwiseError(
            f"A study of kind {study.kind} needs a model with two or more checkpoints under "
            f"`revisions`; {_listed(shown)} has one."
        )
    models = tuple(m for m, r in shown.items() if r and (len(r) > 1 or not kind.checkpoints))
    found: dict[str, tuple[Any, ...]] = {"model": models}
    return found | ({"revision": longest} if len(longest) > 1 else {})


def _of_metrics(study: Study, known: Known) -> dict[str, tuple[Any, ...]]:
    corpora = study.corpora or tuple(known.corpora or ())
    if OWN_TEXTS in corpora:
        if {"associations", "choices"}.isdisjoint(KINDS[study.kind].needs):
            raise LayerwiseError(
                f"{OWN_TEXTS!r} sets each task against the metrics on its own texts, which a "
                f"study of kind {study.kind} does not; name corpora."
            )
        if not known.own_texts:
            raise LayerwiseError(
                f"This study asks for {OWN_TEXTS!r}, and no corpus is a task's own texts; give "
                "one the source {task: …}, or name it under association.own_texts."
            )
    _among("corpus", study.corpora, [*(known.corpora or corpora), OWN_TEXTS])
    _among("choice of tokens", study.tokens, known.tokens)
    _among("sublayer", study.sublayers, known.sublayers)
    curves = study.curves or ()
    _among("metric", tuple(c.metric for c in curves), known.metrics)
    for name, column in (
        ("protocol", known.protocols), ("alpha", known.alphas),
        ("normalization", known.normalizations),
    ):  # fmt: skip
        asked = (*several(getattr(study, name)), *(getattr(c, name) for c in curves))
        _among(name, tuple(v for v in asked if v is not None), column)
    counts: dict[str, tuple[Any, ...]] = {
        "corpus": corpora,
        "sublayer": study.sublayers or tuple(known.sublayers or ()),
        "y": tuple(dict.fromkeys(c.metric for c in curves)),
    }
    for name in ("protocol", "alpha", "normalization"):
        values = dict.fromkeys(several(getattr(study, name)))
        if len(values) > 1:  # variants that metrics name themselves are metrics of their own
            counts[name] = tuple(values)
    return counts | _labelled(corpora, known, {})


def _labelled(
    corpora: Sequence[str], known: Known, roles: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Any, ...]]:
    """The values of each label of perturbed corpora, and the corpora that placed ones mix."""
    own = {corpus: known.labels.get(corpus, {}) for corpus in corpora}
    labels = dict.fromkeys(label for given in own.values() for label in given)
    placed = [d for dimensions in roles.values() for d in dimensions if d in labels]
    mixed: dict[tuple[Any, ...], list[str]] = {}
    for corpus, given in own.items():
        mixed.setdefault(tuple(given.get(d, "") for d in placed), []).append(corpus)
    found = {d: tuple(dict.fromkeys(given.get(d, "") for given in own.values())) for d in labels}
    most = max(map(len, mixed.values()), default=0)
    alike = next((names for names in mixed.values() if len(names) == most), [])
    return {**found, "corpus": tuple(alike)}


def _of_scores(study: Study, known: Known) -> None:
    _among("task", study.tasks, known.tasks)
    _among("pooling", study.pooling, known.poolings)
    _among("reading of layers", study.layers, known.layers)
    types = set((known.tasks or {}).values())
    if known.tasks is not None and None not in types:
        chosen = {known.tasks[t] for t in study.tasks or known.tasks}
        _among("task type", study.task_types, sorted(t for t in chosen if t))


def _of_the_kind(study: Study, known: Known, kind: Kind) -> None:
    if study.kind == "factorial":
        check_factors(study)
        levels = next(iter((study.factors or {}).values()))
        named = {model for models in levels.values() for model in models}
        there = set(study.models or known.models or named)
        if named != there:
            raise LayerwiseError(
                f"The factors of this study are about {_listed(sorted(named))}, and its models "
                f"are {_listed(sorted(there))}; name the same under `models`."
            )
    elif study.factors is not None:
        raise LayerwiseError(f"A study of kind {study.kind} has no factors; leave them out.")
    if study.y is not None and study.kind != "curves":
        raise LayerwiseError(
            f"A study of kind {study.kind} has its own y, {' and '.join(kind.needs)}; `y` is for "
            "the kind curves."
        )
    if study.published and not kind.published:
        lacking = sorted({"prompts", "similarities", "texts"} & set(kind.needs))
        if lacking:
            raise LayerwiseError(
                f"A study of kind {study.kind} reads {' and '.join(lacking)}, which published "
                "tables don't hold; name `models` of the config in place of `published`."
            )
    if known.models is not None and kind.points > 1:
        chosen = [r for m in study.models or known.models
                  for r in revisions_of(study, known.models[m])]  # fmt: skip
        if len(chosen) < kind.points:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs {kind.points} models or checkpoints, and "
                f"this one has {len(chosen)}; name more under `models` or `revisions`."
            )
    if study.kind == "size_scaling" and known.models is not None:
        for model in study.models or known.models:
            if model not in (study.sizes or {}) and size_of(model) is None:
                raise LayerwiseError(
                    f"The name {model!r} tells no number of parameters (as pythia-410m does), and "
                    "a study of kind size_scaling needs one; give it under `sizes`."
                )
    metrics = study.curves or ()
    if "y" in kind.one and len(metrics) > 1:
        raise LayerwiseError(
            f"A study of kind {study.kind} shows one metric, this one names {len(metrics)}: "
            f"{_listed(m.metric for m in metrics)}."
        )
    if study.kind == "layers_together" and known.layers is not None:
        shown = study.layers or tuple(known.layers)
        if ONE not in shown or len(shown) < 2:
            raise LayerwiseError(
                f"A study of kind {study.kind} sets several layers against one, and this one has "
                f"{_listed(shown)}; name more under scoring.layers."
            )
    several_layers = set(study.layers or ()) - {ONE} or any(
        "layers" in dimensions for dimensions in study.roles.values()
    )
    if several_layers and {"associations", "choices"} & set(kind.needs):
        raise LayerwiseError(
            f"A study of kind {study.kind} is about single layers; leave `layers` to studies of "
            "scores alone."
        )
    if "associations" in kind.needs:
        if len(study.task_types or ()) > 1:
            raise LayerwiseError(
                f"A study of kind {study.kind} takes one task type or all of them; "
                f"{_listed(study.task_types or ())} came."
            )
        _among("measure", () if study.measure == "all" else study.measure, known.measures)
        if study.measure == "all" and study.kind == "association_strength":
            raise LayerwiseError(
                "A study of kind association_strength draws one measure; name it under `measure`."
            )


def check_factors(study: Study) -> None:
    """Make sure that a study's factors are two of two levels, over models told once each.

    Raises
    ------
    LayerwiseError
        Saying what came.
    """
    factors = study.factors or {}
    sizes = [len(levels) for levels in factors.values()]
    if sizes != [2, 2]:
        raise LayerwiseError(
            "A study of kind factorial needs two factors of two levels under `factors`, such as "
            f"{{objective: {{causal: [a], masked: [b]}}, mixer: {{…}}}}; {sizes} levels came."
        )
    each = [[m for models in levels.values() for m in models] for levels in factors.values()]
    if any(len(set(models)) < len(models) for models in each) or set(each[0]) != set(each[1]):
        raise LayerwiseError(
            "A study of kind factorial needs each of its models in one level of both factors; "
            f"{', '.join(sorted(set(each[0]) ^ set(each[1]))) or 'some'} is not."
        )
    first, second = factors.values()
    for a, ones in first.items():
        for b, others in second.items():
            if len(set(ones) & set(others)) < 3:
                raise LayerwiseError(
                    f"A study of kind factorial needs three models a cell, and {a} with {b} has "
                    f"{len(set(ones) & set(others))}; train more seeds."
                )


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _listed(values: Iterable[Any]) -> str:
    names = [v if isinstance(v, str) else f"{v:g}" for v in values]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
