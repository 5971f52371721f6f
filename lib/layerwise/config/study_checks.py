"""Whether a config can give a study what it asks for, and the study has a place for all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layerwise.config.association import OWN_TEXTS
from layerwise.config.kinds import (
    DIMENSIONS,
    KINDS,
    Kind,
    needs,
    refuse,
    roles_of,
    without_role,
)
from layerwise.config.studies import Study, revisions_of, several
from layerwise.errors import LayerwiseError, closest
from layerwise.models.parameters import size_of
from layerwise.vocabulary import ONE


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
        "metrics", "prompts", "positions", "associations", "selections", "similarities",
    }  # fmt: skip
    of_scores = {"scores", "associations", "selections"} & set(tables)
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
    if study.kind in ("layer_selection", "association_strength"):
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
        if {"associations", "selections"}.isdisjoint(KINDS[study.kind].needs):
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
    _metrics(study, tuple(c.metric for c in curves), known.metrics)
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


def _metrics(study: Study, wanted: Sequence[str], there: Sequence[str] | None) -> None:
    if study.metrics is None and there is not None and not set(wanted) <= set(there):
        raise LayerwiseError(
            f"A study of kind {study.kind} shows {_listed(dict.fromkeys(wanted))} unless it names "
            f"others, and the config computes {_listed(there)}; name some of these under the "
            "study's `metrics`."
        )
    _among("metric", wanted, there)


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
    if study.kind == "block_parts" and known.sublayers is not None and len(known.sublayers) < 2:
        raise LayerwiseError(
            "A study of kind block_parts needs the states inside blocks, and none are kept of its "
            "corpora; name them under extract.sublayers (or corpora.….sublayers)."
        )
    if study.kind in ("sink_valley", "token_choice"):
        tokens = study.tokens or known.tokens or ("all", "drop_first")
        if "all" not in tokens or len(tokens) < 2:
            raise LayerwiseError(
                f"A study of kind {study.kind} compares all tokens with another choice, and this "
                f"one has {_listed(tokens)}; name all and others under extract.tokens."
            )
    metrics = study.curves or ()
    if "y" in kind.one and len(metrics) > 1:
        raise LayerwiseError(
            f"A study of kind {study.kind} shows one metric, this one names {len(metrics)}: "
            f"{_listed(m.metric for m in metrics)}."
        )
    if {"associations", "selections"} & set(kind.needs) and "scores" not in kind.needs:
        names = [m.metric for m in metrics]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise LayerwiseError(
                f"A study of kind {study.kind} has a row for each metric, and this one names "
                f"{twice[0]} in several variants; name one."
            )
    several_layers = set(study.layers or ()) - {ONE} or any(
        "layers" in dimensions for dimensions in study.roles.values()
    )
    if several_layers and {"associations", "selections"} & set(kind.needs):
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


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _listed(values: Iterable[Any]) -> str:
    names = [v if isinstance(v, str) else f"{v:g}" for v in values]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
