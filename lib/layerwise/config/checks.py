"""What one section of the config asks of another, checked before any job runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.config.corpora import KEPT
from layerwise.config.extraction import ExtractSettings
from layerwise.config.images import ImageCorpus
from layerwise.config.kinds import needs
from layerwise.config.own_tasks import TASK_TYPES
from layerwise.config.studies import Study, corpora_of
from layerwise.config.study_checks import Known
from layerwise.config.study_checks import check as check_study
from layerwise.config.token_tasks import PairTask, poolings_of, type_of
from layerwise.errors import LayerwiseError, closest
from layerwise.metrics.registry import all_metrics
from layerwise.metrics.sequence import QUANTITIES
from layerwise.models.revisions import step_of
from layerwise.paths import encode, trained
from layerwise.tasks.names import DEFAULT, PAPER, PROMPT_TYPES, QUICKSTART, TYPES
from layerwise.vocabulary import ONE

# In the results folder's path these would be read as patterns, or by a shell.
UNFIT = re.compile(r"[{}\x00-\x1f\x7f]|^[~-]|^\s|\s$|//")
LONGEST_PART = 100


def check(config: Config) -> None:
    """Make sure that a config's sections fit together.

    Raises
    ------
    LayerwiseError
        Naming the key, what came, and what is accepted.
    """
    _results(config)
    _names(config)
    for name in config.studies:
        _sections(config, name)
    for where, name, known in _references(config):
        if name not in known:
            raise LayerwiseError(
                f"{where}: there is no {name!r} in the config{closest(name, known)}; "
                f"there are {', '.join(sorted(known)) or 'none'}."
            )
    _nano(config)
    _extracted(config)
    _tasks(config)
    _association(config)
    for model in config.models:
        _prompts(config, model)
    _layers(config)
    for name, study in config.studies.items():
        try:
            check_study(study, _known(config, study))
            _looks_back(config, study)
        except LayerwiseError as error:
            raise LayerwiseError(f"studies.{name}: {error}") from error


def _tasks(config: Config) -> None:
    """Make sure that mteb has the tasks, and that they can be scored."""
    for task in _tasks_of_corpora(config):
        if task in config.token_tasks:
            raise LayerwiseError(
                f"corpora: the source {{task: {task!r}}} is one of token_tasks, whose texts are "
                "no corpus; name a task of mteb's or of own_tasks."
            )
    known = {*QUICKSTART, *PAPER}
    of_pairs = {n: t.pairs for n, t in config.token_tasks.items() if isinstance(t, PairTask)}
    apart = {*config.token_tasks, *config.own_tasks}
    own = [task for task in config.tasks if task not in apart]
    for task in config.own_tasks:
        if task in known or task in config.token_tasks:
            raise LayerwiseError(
                f"own_tasks.{task}: there is another task of that name; rename yours."
            )
    for task in [*own, *_tasks_of_corpora(config), *of_pairs.values()]:
        if task not in known and task not in config.own_tasks:
            # mteb takes seconds to import; most configs need none of it here.
            from layerwise.tasks.catalog import get_task

            get_task(task)
    for name, task in of_pairs.items():
        _pairs(name, task)


def _association(config: Config) -> None:
    """Make sure that what `association` names is there. Published tables may hold anything."""
    if config.published:
        return
    given, metrics = config.association, list(all_metrics())
    tasks = [*config.tasks, *QUICKSTART, *PAPER]
    named: dict[str, tuple[Iterable[Any], Sequence[Any]]] = {
        "metrics": (given.metrics or (), metrics),
        "directions": (given.directions, metrics),
        "own_texts": (given.own_texts, list(config.corpora)),
        "own_texts (tasks)": (given.own_texts.values(), tasks),
        "text_sources": (given.text_sources, tasks),
        "alphas": (given.alphas or (), config.metrics.alphas),
    }
    for key, (names, known) in named.items():
        for name in names:
            if name not in known:
                near = closest(name, known) if isinstance(name, str) else ""
                raise LayerwiseError(
                    f"association.{key}: {name!r} came{near}; there are "
                    f"{', '.join(map(str, known)) or 'none'}."
                )


def _pairs(name: str, task: str) -> None:
    kind = QUICKSTART.get(task)
    if kind is None:
        from layerwise.tasks.catalog import get_task

        kind = get_task(task).metadata.type
    if kind != "STS":
        raise LayerwiseError(
            f"token_tasks.{name}.pairs: {task} is of the type {kind}; accepted are tasks of the "
            "type STS, such as STSBenchmark."
        )


def _prompts(config: Config, model: str) -> None:
    """Make sure that mteb would look for each of a model's prompts."""
    entry, where = config.models[model], f"models.{model}"
    if entry.prompts is None and entry.include_prompt is not None:
        raise LayerwiseError(
            f"{where}.include_prompt: {str(entry.include_prompt).lower()} came, but the model has "
            "no prompts; give them under `prompts`, or leave it out."
        )
    known = {*QUICKSTART, *PAPER, *TYPES, *config.tasks}
    for name in entry.prompts if isinstance(entry.prompts, dict) else ():
        head, _, tail = name.rpartition("-")
        of = head if tail in PROMPT_TYPES else name
        if name in (*PROMPT_TYPES, DEFAULT) or of in known:
            continue
        from layerwise.tasks.catalog import is_known

        if not is_known(of):
            near = closest(name, [*PROMPT_TYPES, DEFAULT, *known])
            raise LayerwiseError(
                f"{where}.prompts: {name!r} came{near}; accepted are query, document (which is "
                f"mteb's word for a passage), default, task types ({', '.join(TYPES)}), mteb's "
                "names of tasks, and both of these with -query or -document behind them."
            )


def _layers(config: Config) -> None:
    """Make sure that single layers are scored too, and what others are joined with."""
    layers = config.scoring.layers
    if ONE not in layers:
        raise LayerwiseError(
            f"scoring.layers: {', '.join(layers)} came without {ONE!r}, which all others are set "
            "against; add it."
        )
    for model in config.models:
        readouts = config.scoring_of(model).readouts
        if "concat last" in layers and "output" not in readouts:
            raise LayerwiseError(
                f"scoring.layers: 'concat last' needs the readout output, and {model} is scored "
                f"with {', '.join(readouts)}; add output to its readouts."
            )
    if "concat class" in layers:
        tokens = {model: config.extraction(model).tokens for model in config.models}
        if not any("class" in of and len(of) > 1 for of in tokens.values()):
            raise LayerwiseError(
                "scoring.layers: 'concat class' puts other tokens beside the class token, and no "
                "model is read by both; say tokens: [patches, class] in the entry of a vision "
                "model that has one."
            )


def _results(config: Config) -> None:
    parts = PurePath(config.results).parts
    too_long = any(len(part.encode()) > LONGEST_PART for part in parts) or len(parts) > 30
    unfit = UNFIT.search(config.results) or parts in ((), ("/",), (".",)) or ".." in parts
    if unfit or too_long:
        raise LayerwiseError(
            f"results: {config.results!r} came; accepted is the path of a folder of its own, "
            "without '~' or '-' in front, '..', braces, line breaks, spaces at its ends, or parts "
            f"of over {LONGEST_PART} letters."
        )


def _names(config: Config) -> None:
    """Make sure that every name can be a part of a path, and that no two are one there."""
    sections: dict[str, Iterable[str]] = {
        name: getattr(config, name)
        for name in ("models", "corpora", "tasks", "published", "studies")
    }
    sections |= {f"models.{m}.revisions": entry.revisions for m, entry in config.models.items()}
    for where, names in sections.items():
        seen: dict[str, str] = {}
        for name in names:
            # Many file systems don't tell capitals from small letters.
            folded = encode(name).casefold()
            if folded in seen:
                raise LayerwiseError(
                    f"{where}: {seen[folded]!r} and {name!r} differ by capitals alone, which many "
                    "file systems don't tell apart; rename one."
                )
            seen[folded] = name
    for corpus in config.corpora:
        if corpus.endswith((".views", ".prompts", ".positions")):
            raise LayerwiseError(
                f"corpora: {corpus!r} cannot be a name, since files of its own end so; rename it."
            )


def _nano(config: Config) -> None:
    """Make sure that the entries of models that are trained here say what is trained."""
    rules: dict[str, str] = {}
    for model, nano in config.nano.items():
        entry, where = config.models[model], f"models.{model}"
        own = f"{config.results}/{trained(model, '{revision}')}"
        given = getattr(entry.source, "folder", None)
        if given is None or PurePath(given) != PurePath(own):
            raise LayerwiseError(
                f"{where}.source: {entry.source.plain()} came, but nano.{model} is trained into a "
                f"folder of this config's results; write folder: {own}."
            )
        for revision in entry.revisions:
            step = step_of(revision)
            if step is None or step > nano.train_steps:
                raise LayerwiseError(
                    f"{where}.revisions: {revision!r} came; accepted are step0 to "
                    f"step{nano.train_steps}, since nano.{model} is trained for "
                    f"{nano.train_steps} steps."
                )
        wanted = nano.objective == "masked"
        if entry.bidirectional != wanted:
            raise LayerwiseError(
                f"{where}.bidirectional: {str(not wanted).lower()} came, but nano.{model} "
                f"is trained with the objective {nano.objective!r}; write "
                f"bidirectional: {str(wanted).lower()}."
            )
        corpus = config.corpora.get(nano.corpus or "")
        if corpus is not None and isinstance(corpus, ImageCorpus) != nano.of_images:
            what = "images" if nano.of_images else "texts"
            raise LayerwiseError(
                f"nano.{model}.corpus: {nano.corpus!r} came, but {nano.architecture} is trained "
                f"on {what}; name a corpus of {what}."
            )
        rule = re.sub(r"\W", "_", model)
        if rule in rules:
            raise LayerwiseError(
                f"nano: {rules[rule]!r} and {model!r} differ by punctuation alone, and their "
                "rules would have one name; rename one."
            )
        rules[rule] = model


def _references(config: Config) -> Iterator[tuple[str, str, list[str]]]:
    models = list(config.models)
    for study, entry in config.studies.items():
        if entry.published:
            yield f"studies.{study}.published", entry.published, list(config.published)
            continue
        for key, known in (
            ("models", models),
            ("corpora", [*config.corpora, OWN_TEXTS]),
            ("tasks", list(config.tasks)),
        ):
            for name in getattr(entry, key) or ():
                yield f"studies.{study}.{key}", name, known
        if isinstance(entry.revisions, tuple):
            for model in entry.models or models:
                there = list(config.models[model].revisions) if model in models else []
                for revision in entry.revisions:
                    yield f"studies.{study}.revisions (model {model})", revision, there
    for name, nano in config.nano.items():
        yield "nano", name, models
        if nano.corpus is not None:
            yield f"nano.{name}.corpus", nano.corpus, list(config.corpora)
    for study, entry in config.studies.items():
        for model in (entry.sizes or {}) if not entry.published else ():
            yield f"studies.{study}.sizes", model, models
    for name in config.token_tasks:
        yield "token_tasks", name, list(config.tasks)
    of_images = [c for c, entry in config.corpora.items() if isinstance(entry, ImageCorpus)]
    for name, own in config.own_tasks.items():
        yield "own_tasks", name, list(config.tasks)
        if own.corpus is not None:
            yield f"own_tasks.{name}.corpus (of images)", own.corpus, of_images
    for name in config.task_folders:
        pairs = [t.pairs for t in config.token_tasks.values() if isinstance(t, PairTask)]
        yield "task_folders", name, [*config.tasks, *_tasks_of_corpora(config), *pairs]


def _tasks_of_corpora(config: Config) -> list[str]:
    return [c.source.task for c in config.corpora.values() if hasattr(c.source, "task")]


def _extracted(config: Config) -> None:
    """Metrics are computed of what the extraction keeps."""
    own_texts = own_texts_of(config)
    kept = {
        f" of {model} on {corpus}": config.extraction(model, corpus)
        for study in config.studies.values() if not study.published
        for model in study.models or config.models
        for corpus in corpora_of(study, list(config.corpora), own_texts)
        if corpus in config.corpora
    } or {"": config.extract}  # fmt: skip
    for key in ("protocols", "tokens", "sublayers"):
        for name in getattr(config.metrics, key) or ():
            without = {
                of: getattr(e, key) for of, e in kept.items() if name not in getattr(e, key)
            }
            # Parts of blocks may be kept here and there, and models may lack them.
            if without and (key != "sublayers" or len(without) == len(kept)):
                of, there = next(iter(without.items()))
                raise LayerwiseError(
                    f"metrics.{key}: {name!r} came, which extract.{key} does not keep{of}; it "
                    f"keeps {', '.join(there) or 'none'}: add it there, or leave metrics.{key} "
                    "out to follow it."
                )


def _extractions(config: Config, corpora: Iterable[str]) -> list[ExtractSettings]:
    """What is kept on each of these corpora; the section alone without any."""
    found = [config.corpora[c].over(config.extract) for c in corpora if c in config.corpora]
    return found or [config.extract]


def _kept(extractions: Sequence[ExtractSettings], key: str) -> tuple[str, ...]:
    """What is kept everywhere; of parts of blocks, which models may lack too, anywhere."""
    each: list[tuple[str, ...]] = [getattr(e, key) for e in extractions]
    there = dict.fromkeys(name for names in each for name in names)
    if key == "sublayers":
        return tuple(there)
    return tuple(name for name in there if all(name in names for names in each))


def _sections(config: Config, name: str) -> None:
    """Make sure that the config has what a study of its kind is about at all."""
    entry = config.studies[name]
    if entry.published:
        given = config.published.get(entry.published)
        of_scores = {"scores", "associations", "selections"} & set(needs(entry))
        if given is not None and given.scores is None and of_scores:
            raise LayerwiseError(
                f"studies.{name}: a study of kind {entry.kind!r} needs scores, and "
                f"published.{entry.published} has none; give it some under `scores`."
            )
        return
    needed = {
        "metrics": ("corpora",), "prompts": ("corpora",), "positions": ("corpora",),
        "scores": ("tasks",),
        "associations": ("corpora", "tasks"), "selections": ("corpora", "tasks"),
        "similarities": ("corpora",), "texts": ("corpora",), "surprisals": ("corpora",),
        "probes": ("own_tasks",),
    }  # fmt: skip
    tables = needs(entry)
    wanted = ["models", *(key for table in tables for key in needed[table])] if tables else []
    for key in wanted:
        if not getattr(config, key):
            raise LayerwiseError(
                f"studies.{name}: a study of kind {entry.kind!r} needs {key!r}, and that is "
                "missing or empty in the config."
            )
    if "probes" in tables:
        named = entry.tasks or config.tasks
        own = [config.own_tasks[task].kind for task in named if task in config.own_tasks]
        if not set(own) - {"pairs"}:
            raise LayerwiseError(
                f"studies.{name}: a study of kind {entry.kind!r} draws probes of own_tasks, and "
                f"{'pairs have none' if own else 'it has no such task'}; name one of another kind "
                "under `tasks`."
            )
    if {"texts", "surprisals"} & set(tables):
        corpora = corpora_of(entry, list(config.corpora), own_texts_of(config))
        images = [c for c in corpora if isinstance(config.corpora.get(c), ImageCorpus)]
        if images:
            raise LayerwiseError(
                f"studies.{name}: a study of kind {entry.kind!r} reads the texts of its prompts, "
                f"and {', '.join(images)} holds images; name corpora of texts under `corpora`."
            )


def _looks_back(config: Config, study: Study) -> None:
    """Refuse models that the config lets see later tokens where nothing can be read of such."""
    if study.published:
        return
    both_ways = [m for m in study.models or config.models if config.models[m].bidirectional]
    if study.models is None and len(both_ways) < len(config.models):
        return  # they are left out, and the figure says so
    lacking = (
        "prefixes"
        if any(curve.metric == "prefix_entropy" for curve in study.curves or ())
        else None
    )
    if both_ways and lacking:
        raise LayerwiseError(
            f"The tokens of {' and '.join(both_ways)} see later ones (bidirectional: true), which "
            f"leaves no {lacking}; take it out of this study's `models`."
        )


def _known(config: Config, study: Study) -> Known:
    """What the config offers a study, per dimension."""
    own_texts = own_texts_of(config)
    if study.published:
        return Known(own_texts=own_texts)
    models = study.models or tuple(config.models)
    readings = [reading for m in models for reading in _readings(config, study, m)]
    # A readout is named where the tables of the models together have several.
    several = len({readout for _, readout in readings}) > 1
    poolings = [
        f"{pooling}, {readout}" if several and readout != "residual" else pooling
        for pooling, readout in readings
    ]
    own = [c for c in corpora_of(study, list(config.corpora), own_texts) if c in config.corpora]
    run = [config.extraction(m, c) for m in models for c in own or (None,)]
    kept = _extractions(config, corpora_of(study, list(config.corpora), own_texts))
    return Known(
        models={m: entry.revisions for m, entry in config.models.items()},
        corpora=list(config.corpora),
        tasks={
            task: type_of(config.token_tasks[task])
            if task in config.token_tasks
            else TASK_TYPES[config.own_tasks[task].kind]
            if task in config.own_tasks
            else QUICKSTART.get(task)
            for task in config.tasks
        },
        tokens=list(dict.fromkeys(t for e in run for t in e.tokens)),
        poolings=list(dict.fromkeys(poolings)),
        layers=config.scoring.layers,
        sublayers=("block", *_kept(kept, "sublayers")),
        protocols=config.metrics.protocols or _kept(kept, "protocols"),
        alphas=config.metrics.alphas,
        normalizations=("raw", *config.metrics.normalizations),
        metrics=_metrics(config, study, own_texts),
        measures=config.association.measures,
        own_texts=own_texts,
        labels=config.labels(),
    )


def _readings(config: Config, study: Study, model: str) -> list[tuple[str, str]]:
    """The poolings of the scores of a study's tasks, each with its readout."""
    scoring = config.scoring_of(model)
    found: dict[tuple[str, str], None] = {}
    for task in study.tasks or config.tasks:
        own = config.token_tasks.get(task)
        poolings = scoring.poolings if own is None else poolings_of(own)
        readouts = (
            scoring.readouts if own is None or isinstance(own, PairTask) else ("final_norm",)
        )
        found |= dict.fromkeys((p, r) for p in poolings for r in readouts)
    return list(found)


def own_texts_of(config: Config) -> dict[str, str]:
    """Corpora that are a task's own texts, with the task."""
    of_tasks = {c: e.source.task for c, e in config.corpora.items() if hasattr(e.source, "task")}
    published: Mapping[str, str] = {}
    if config.published:
        from layerwise.association.published import TASK_OF_DATASET

        published = TASK_OF_DATASET
    return {**published, **of_tasks, **config.association.own_texts}


def _metrics(config: Config, study: Study, own_texts: Mapping[str, str]) -> list[str]:
    """The metrics that are computed on a study's corpora.

    Raises
    ------
    LayerwiseError
        If the study names one that the extraction or the corpora cannot give.
    """
    computed = list(config.metrics.metrics or all_metrics())
    corpora = corpora_of(study, list(config.corpora), own_texts)
    if "positions" in needs(study):
        for name in {c.metric for c in study.curves or ()} & set(QUANTITIES):
            kept = QUANTITIES[name].needs
            without = [c for c in corpora if not all(
                getattr(e, kept) for e in _extractions(config, [c]))]  # fmt: skip
            if without:
                own = f" (or corpora.….{kept})" if kept in KEPT else ""
                raise LayerwiseError(
                    f"{name} needs extract.{kept}: true{own}, and it is false on "
                    f"{', '.join(without)}; name other `corpora`, or set it."
                )
        return list(QUANTITIES)
    views = min((config.corpora[c].views.n for c in corpora if c in config.corpora), default=0)
    # A study that names none shows what there is.
    named = {c.metric for c in study.curves or ()} or set(config.metrics.metrics or ())
    for name in named & set(all_metrics()):
        declared = all_metrics()[name]
        if declared.min_views > views and needs(study):
            raise LayerwiseError(
                f"{name} needs {declared.min_views} views of each prompt, and "
                f"{' and '.join(corpora)} has {views}; raise corpora.…views.n."
            )
        for kept in ("spectra", "curvature"):
            if kept in declared.inputs and not getattr(config.extract, kept):
                raise LayerwiseError(
                    f"{name} needs the {kept} of each prompt, and extract.{kept} is false."
                )
    return computed
