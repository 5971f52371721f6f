"""The stages of the workflow, each declared once.

A stage says what its jobs are told apart by, which files they write, with which code, from which
settings, after which other jobs. Keys, Snakemake's inputs and outputs, the scripts' paths, the
account of costs and the page that tells what each file is all come from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from layerwise.config import Config
from layerwise.config.checks import own_texts_of
from layerwise.config.corpora import KEPT
from layerwise.config.extraction import ExtractSettings
from layerwise.config.images import ImageCorpus
from layerwise.config.models import FolderSource, Model
from layerwise.config.token_tasks import PairTask
from layerwise.corpora.images_sources import SUFFIXES
from layerwise.explore import PARTS
from layerwise.files import is_folder
from layerwise.models.source import locate
from layerwise.paths import encode, trained
from layerwise.tasks.names import QUICKSTART
from layerwise.workflow import content, targets
from layerwise.workflow.targets import Job

# Stands in a folder that a job makes, and holds the job's stamp.
MARKER = "layerwise.json"

Names = tuple[str, ...]


class Input(NamedTuple):
    """A file of another job's."""

    job: Job
    role: str


Inputs = Mapping[str, list[Input]]


def _nothing(_config: Config, *_names: str) -> Any:
    return None


def _no_inputs(_config: Config, *_names: str) -> Inputs:
    return {}


@dataclass(frozen=True)
class Stage:
    """A kind of job.

    Besides its entry in `STAGES`, a stage has ``scripts/{name}.py`` and a rule in
    ``workflow/rules``; if no other stage reads its files, `targets.targets` must name its jobs, or
    nothing makes them.

    Attributes
    ----------
    name : str
        Of the stage; also of its rule, unless `rule` says another, and so of the script
        (``scripts/{rule}.py``), the logs and the benchmarks.
    about : str
        What its files are, for people.
    names : tuple of str
        What tells its jobs apart, in order: ``model``, ``revision``, ``corpus``, …
    files : mapping from role to path
        Below the results folder; names in braces. The first carries the job's stamp. No path may
        fit another stage's pattern: ``corpora/{corpus}.parquet`` takes all that ends so.
    code : tuple of str
        Entries of `layerwise.workflow.fingerprint`.
    settings : function of the config and the names
        All of the config that decides what the files hold, as JSON has it.
    inputs : function of the config and the names
        The files of other jobs that it reads, by the role that they have for it.
    outside : function of the config and the names
        Hashes of what it reads from outside the workflow.
    libraries : tuple of str
        Those that compute its values.
    more_files : function of the config and the names
        Further files, of stages whose files depend on the config.
    rule : str
        The rule whose jobs each do several of this stage: all of a model at a checkpoint, or at
        several. Empty for a rule of its own name, a job of which is one of the stage's.
    words : bool
        Whether texts in the code, such as a metric's label, are part of what it makes.
    gpu : bool
        Whether it runs on a GPU where there is one.
    """

    name: str
    about: str
    names: Names
    files: Mapping[str, str]
    code: tuple[str, ...]
    settings: Callable[..., Any] = _nothing
    inputs: Callable[..., Inputs] = _no_inputs
    outside: Callable[..., Any] = _nothing
    libraries: tuple[str, ...] = ()
    more_files: Callable[..., Mapping[str, str]] = lambda _config, *_names: {}
    rule: str = ""
    words: bool = False
    gpu: bool = False

    def paths(self, config: Config, names: Names) -> dict[str, str]:
        """The files of one job by role, the results folder in front."""
        own = dict(zip(self.names, map(encode, names), strict=True))
        found = {role: path.format(**own) for role, path in self.files.items()}
        found |= self.more_files(config, *names)
        return {role: f"{config.results}/{path}" for role, path in found.items()}


# Texts


def _corpus_inputs(config: Config, corpus: str) -> Inputs:
    source = config.corpora[corpus].source
    if getattr(source, "package", None) == "wikipedia":
        return {"texts": [Input(Job("unpack_wikipedia"), "texts")]}
    if hasattr(source, "task"):
        return {"texts": [_texts_of(config, source.task)]}
    return {}


def _texts_of(config: Config, task: str) -> Input:
    """The list of a task's texts."""
    stage = "list_labelled_texts" if task in config.own_tasks else "list_task_texts"
    return Input(Job(stage, (task,)), "texts")


def _corpus_settings(config: Config, corpus: str) -> Any:
    # A key added to the section later has to rest in silence (`layerwise.config.base.later`), or
    # it reruns every corpus and extraction.
    entry = config.corpora[corpus].keyed()
    if "source" in entry:
        entry["source"] = _placeless(entry["source"])
    apart = {"views", "perturb", *KEPT}
    return {"name": corpus, **{key: entry[key] for key in entry if key not in apart}}


def _placeless(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without the place of its file, whose bytes are hashed: how they are read, the end
    of its name says."""
    file = entry.get("file")
    return entry if file is None else {**entry, "file": Path(file).suffix.lower()}


def _corpus_outside(config: Config, corpus: str) -> Any:
    source = config.corpora[corpus].source
    if hasattr(source, "file"):
        return content.of_file(Path(source.file))
    if hasattr(source, "hub") and is_folder(source.hub):
        return content.of_folder(Path(source.hub))
    if hasattr(source, "folder"):
        return content.listing(Path(source.folder), SUFFIXES)
    return None


def _corpus(config: Config, corpus: str) -> Input:
    """The prompts of a corpus."""
    return Input(Job("make_images" if _of_images(config, corpus) else "make_corpus", (corpus,)),
                 "corpus")  # fmt: skip


def _views(config: Config, corpus: str) -> Input:
    """What the views of its prompts are."""
    stage = "draw_image_views" if _of_images(config, corpus) else "make_views"
    return Input(Job(stage, (corpus,)), "views")


def _of_images(config: Config, corpus: str) -> bool:
    return isinstance(config.corpora[corpus], ImageCorpus)


# Models


def _nano_files(config: Config, model: str) -> dict[str, str]:
    revisions = config.models[model].revisions
    return {f"folder:{r}": f"{trained(model, r)}/{MARKER}" for r in revisions}


def _nano_inputs(config: Config, model: str) -> Inputs:
    corpus = config.nano[model].corpus
    if corpus is not None:
        return {"corpus": [_corpus(config, corpus)]}
    return {"texts": [Input(Job("unpack_wikipedia"), "texts")]}


def _model_inputs(config: Config, model: str, revision: str) -> Inputs:
    """The marker of the model's folder, if the workflow makes it."""
    if model in config.nano:
        return {"model": [Input(Job("train_nano", (model,)), f"folder:{revision}")]}
    if config.models[model].source.gguf_file:
        return {"model": [Input(Job("convert_gguf", (model, revision)), "folder")]}
    return {}


# Keys by which a model's entry overrides `extract` and `scoring`; those count them.
RUN = frozenset({"dtype", "batch_tokens", "tokens", "poolings", "readouts"})
# Keys that say something of a task's texts alone.
PROMPTS = ("prompts", "include_prompt")


def _model_settings(config: Config, model: str) -> Any:
    # Where a model runs and which checkpoints there are change nothing of one checkpoint.
    apart = {"revisions", "device_map", *PROMPTS, *RUN}
    found = {k: v for k, v in config.models[model].keyed().items() if k not in apart}
    # Nor does the place of a local folder, whose files are hashed.
    for source in (found["source"], *found["adapters"]):
        source.pop("folder", None)
    return found


def _model_outside(config: Config, model: str, revision: str) -> Any:
    entry = config.models[model]
    found: dict[str, Any] = {}
    if model not in config.nano and not entry.source.gguf_file:
        found["model"] = _folder(entry.source, revision)
    for place, adapter in enumerate(entry.adapters):
        found[f"adapter {place}"] = _folder(adapter, "main")
    return found


def _folder(source: Any, revision: str) -> Any:
    """Hashes of a local model's files; None of one that comes from the hub."""
    folder = Path(source.hub) if hasattr(source, "hub") else locate(source, revision).folder
    return content.of_folder(folder) if folder is not None and is_folder(folder) else None


def _fetch_settings(config: Config, model: str, revision: str) -> Any:
    saved = ["prompts"] if config.models[model].prompts == "saved" else []
    return [_model_settings(config, model), revision, *saved]


def _fetched_task_settings(config: Config, task: str) -> Any:
    """mteb's name says all of a task; questions are the config's."""
    own = config.token_tasks.get(task)
    return task if own is None else [task, own.keyed()]


def loadable(config: Config, model: str, revision: str) -> Model:
    """A model's entry with the source that it is loaded from at a checkpoint: a converted GGUF
    model is an ordinary folder."""
    entry = config.models[model]
    if not entry.source.gguf_file:
        return entry
    marker = STAGES["convert_gguf"].paths(config, (model, revision))["folder"]
    folder = str(Path(marker).parent)
    return entry.model_copy(update={"source": FolderSource(folder=folder, gguf_file=None)})


def _gguf_outside(config: Config, model: str, revision: str) -> Any:
    source = config.models[model].source
    folder = locate(source, revision).folder
    return content.sampled(folder / str(source.gguf_file)) if folder else None


# Activations and metrics

# How a job runs, not what it computes.
MACHINE = frozenset({"device", "batch_tokens", "threads", "shards"})


def _without_machine(section: Any) -> dict[str, Any]:
    return {key: value for key, value in section.keyed().items() if key not in MACHINE}


def _extract_inputs(config: Config, model: str, revision: str, corpus: str) -> Inputs:
    shards = config.extract.shards
    if shards > 1:
        names = [(model, revision, corpus, str(shard)) for shard in range(shards)]
        return {"shards": [Input(Job("extract_shard", name), "activations") for name in names]}
    return _shard_inputs(config, model, revision, corpus)


def _shard_inputs(config: Config, model: str, revision: str, corpus: str, *_: str) -> Inputs:
    return {
        **_model_inputs(config, model, revision),
        "corpus": [_corpus(config, corpus)],
        "views": [_views(config, corpus)],
    }


def _extract_settings(config: Config, model: str, revision: str, corpus: str) -> Any:
    found = {
        "model": _model_settings(config, model),
        "revision": revision,
        "extract": _without_machine(config.extraction(model, corpus)),
    }
    perturb = config.corpora[corpus].perturb
    return found if perturb is None else {**found, "perturb": perturb.keyed()}


def _surprisal_settings(config: Config, model: str, revision: str, corpus: str) -> Any:
    perturb = config.corpora[corpus].perturb
    return {
        "model": _model_settings(config, model),
        "revision": revision,
        "extract": {"dtype": config.extraction(model).dtype},
        **({} if perturb is None else {"perturb": perturb.keyed()}),
    }


# Tasks


def _task_files(_config: Config) -> dict[str, str]:
    return {task: f"tasks/{encode(task)}.made" for task in QUICKSTART}


def task_folder(config: Config, task: str) -> str | None:
    """The local folder that holds a task's data, if it does not come from the hub."""
    if task in config.task_folders:
        return config.task_folders[task]
    return f"{config.results}/tasks/{encode(task)}" if task in QUICKSTART else None


def _task_inputs(config: Config, task: str) -> Inputs:
    if task in QUICKSTART and task not in config.task_folders:
        return {"made": [Input(Job("make_tasks"), task)]}
    return {}


def _task_outside(config: Config, task: str) -> Any:
    folder = config.task_folders.get(task)
    return content.of_folder(Path(folder)) if folder else None


def _embed_inputs(config: Config, model: str, revision: str, task: str) -> Inputs:
    return {
        **_model_inputs(config, model, revision),
        "texts": [_texts_of(config, task)],
        **_labelled_inputs(config, task),
    }


def _embed_settings(config: Config, model: str, revision: str, task: str) -> Any:
    extract, scoring = config.extraction(model), config.scoring_of(model)
    entry = config.models[model].keyed()
    return {
        **{key: entry[key] for key in PROMPTS if key in entry},
        "model": _model_settings(config, model),
        "revision": revision,
        "extract": {"dtype": extract.dtype, "tokens": list(extract.tokens), **_sinks(extract)},
        "scoring": {"poolings": list(scoring.poolings), "readouts": list(scoring.readouts)},
    }


def _sinks(extract: ExtractSettings) -> dict[str, Any]:
    return {k: v for k, v in extract.keyed().items() if k == "sink_ratio"}


def _score_inputs(config: Config, model: str, revision: str, task: str) -> Inputs:
    return {
        **_task_inputs(config, task),
        "embeddings": [Input(Job("embed_task", (model, revision, task)), "embeddings")],
    }


def _labels_inputs(config: Config, model: str, revision: str, task: str) -> Inputs:
    embedded = Input(Job("embed_task", (model, revision, task)), "embeddings")
    return {"embeddings": [embedded], **_labelled_inputs(config, task)}


def _labelled_inputs(config: Config, task: str) -> Inputs:
    """The images of a task, if it has any."""
    own = config.own_tasks.get(task)
    if own is None or own.corpus is None:
        return {}
    return {"corpus": [_corpus(config, own.corpus)]}


def _labels_outside(config: Config, *names: str) -> Any:
    file = config.own_tasks[names[-1]].file
    return None if file is None else content.of_file(Path(file))


def _items_inputs(config: Config, task: str) -> Inputs:
    entry = config.token_tasks[task]
    if isinstance(entry, PairTask):
        return _task_inputs(config, entry.pairs)
    if hasattr(entry.questions, "package"):
        return {"texts": [Input(Job("unpack_wikipedia"), "texts")]}
    return {}


def _items_outside(config: Config, task: str) -> Any:
    entry = config.token_tasks[task]
    if isinstance(entry, PairTask):
        return _task_outside(config, entry.pairs)
    source: Any = entry.questions
    if hasattr(source, "file"):
        given = [source.file, *filter(None, [source.examples])]
        return {Path(file).name: content.of_file(Path(file)) for file in given}
    if hasattr(source, "hub") and is_folder(source.hub):
        return content.of_folder(Path(source.hub))
    return None


def _tokens_settings(config: Config, model: str, revision: str, task: str) -> Any:
    scoring, entry = config.scoring_of(model), config.token_tasks[task]
    extract = config.extraction(model)
    read: dict[str, Any] = {"confidence": scoring.confidence}
    if isinstance(entry, PairTask):
        read |= {"readouts": list(scoring.readouts), "tokens": list(extract.tokens)}
        read |= _sinks(extract)
    return {
        "model": _model_settings(config, model),
        "revision": revision,
        "extract": {"dtype": extract.dtype},
        "scoring": read,
        "task": entry.keyed(),
    }


def _tokens_inputs(config: Config, model: str, revision: str, task: str) -> Inputs:
    return {
        **_model_inputs(config, model, revision),
        "items": [Input(Job("list_items", (task,)), "listed")],
    }


# Studies


def _tables(config: Config, study: str, wanted: tuple[str, ...]) -> Inputs:
    roles = {
        "metrics": "metrics", "prompts": "prompts", "positions": "positions", "scores": "scores",
        "associations": "associations", "selections": "choices", "similarities": "similarities",
        "paired": "paired", "probes": "probes", "texts": "corpus", "surprisals": "surprisals",
    }  # fmt: skip
    return {
        table: [Input(job, roles[table]) for job in targets.made_from(config, study, table)]
        for table in wanted
    }


def _associate_inputs(config: Config, study: str) -> Inputs:
    return _tables(config, study, ("metrics", "scores"))


def _choose_inputs(config: Config, study: str) -> Inputs:
    """Also whether the last checkpoint of each model has prompts enough."""
    if config.studies[study].published:
        return _associate_inputs(config, study)
    last = dict(targets.points(config, study))
    picks = [
        Input(Job("check_picks", (model, revision, corpus)), "picks")
        for model, revision in last.items()
        for corpus in targets.corpora(config, study)
    ]
    return {**_associate_inputs(config, study), "picks": picks}


def _associate_settings(config: Config, study: str) -> Any:
    own_texts = own_texts_of(config)
    corpora = targets.corpora(config, study)
    return {
        "association": config.association.keyed(),
        "own_texts": {corpus: own_texts[corpus] for corpus in corpora if corpus in own_texts},
        "revisions": _order(config, study)["revisions"],
    }


def _compare_inputs(config: Config, study: str) -> Inputs:
    (corpus,) = targets.corpora(config, study)
    return {
        "activations": [
            Input(Job("extract_activations", (m, r, corpus)), "activations")
            for m, r in targets.points(config, study)
        ]
    }


def _draw_inputs(config: Config, study: str) -> Inputs:
    return _tables(config, study, targets.needs(config, study))


def _draw_settings(config: Config, study: str) -> Any:
    found = {
        "study": config.studies[study].keyed(),
        "directions": dict(config.association.directions),
        **_sources(config),
        **_order(config, study),
    }
    labels = _labels(config, study)
    return {**found, "labels": labels} if labels else found


def _labels(config: Config, study: str) -> dict[str, dict[str, float]]:
    """What the perturbed corpora of a study are told apart by."""
    if config.studies[study].published or not set(targets.needs(config, study)) - {"scores"}:
        return {}
    own = targets.corpora(config, study)
    return {corpus: label for corpus, label in config.labels().items() if corpus in own}


def _order(config: Config, study: str) -> dict[str, Any]:
    """The place of each of a study's models in the config, which gives it its colour, and the
    order of the checkpoints."""
    if config.studies[study].published or not targets.needs(config, study):
        return {"models": {}, "revisions": {}}
    places = {model: place for place, model in enumerate(config.models)}
    own = targets.models(config, study)
    return {
        "models": {model: places[model] for model in own},
        "revisions": {model: list(targets.revisions(config, study, model)) for model in own},
    }


def _published_outside(config: Config, name: str) -> Any:
    entry = config.published[name]
    given = {table: getattr(entry, table) for table in ("scores", "metrics")}
    return {t: content.of_file(Path(path)) for t, path in given.items() if path is not None}


def _best_inputs(config: Config) -> Inputs:
    return {"scores": [Input(job, "scores") for job in targets.scored(config)]}


def _explore_inputs(config: Config) -> Inputs:
    """Every table that a study of the config draws on, published ones by their name."""
    found: dict[str, list[Input]] = {
        role: [Input(job, role) for job in jobs]
        for role, jobs in (
            ("metrics", targets.measured(config)),
            ("scores", targets.scored(config)),
        )
    }
    for name in targets.published(config):
        job = Job("import_published", (name,))
        roles = ("metrics", "scores") if config.published[name].scores else ("metrics",)
        found |= {f"{role}:{name}": [Input(job, role)] for role in roles}
    for study, entry in config.studies.items():
        for role in ("associations", "selections"):
            if role in targets.needs(config, study):
                place = f"{role}:{entry.published}" if entry.published else role
                made = "choices" if role == "selections" else role
                found.setdefault(place, []).append(
                    Input(Job(targets.OF_STUDY[role], (study,)), made)
                )
    return found


def _explore_settings(config: Config) -> Any:
    return {
        **_sources(config),
        "models": _all_in_order(config),
        "directions": dict(config.association.directions),
        "page": {path.name: content.of_file(path) for path in PARTS},
    }


def _all_in_order(config: Config) -> list[Any]:
    """Models and checkpoints as `cli.Run.order` has them. Pairs: keys of a mapping have no order
    in a hash."""
    return [[model, list(entry.revisions)] for model, entry in config.models.items()]


def _sources(config: Config) -> dict[str, Any]:
    own = dict(config.association.text_sources)
    return {"text_sources": own} if own else {}


def _best_settings(config: Config) -> Any:
    return {
        **_sources(config),
        "models": _all_in_order(config),
        "seed": config.association.seed,
    }


def _weights_inputs(config: Config) -> Inputs:
    roles = {"compute_metrics": "metrics"}
    return {
        "tables": [Input(job, roles.get(job.stage, "scores")) for job in targets.swept(config)]
    }


_RUN = ("model", "revision")

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "unpack_wikipedia",
            "Paragraphs of the Wikipedia slice in gensim's test data, free of markup.",
            (),
            {"texts": "texts/wikipedia.parquet"},
            ("layerwise.corpora.wikipedia:unpack",),
        ),
        Stage(
            "make_corpus",
            "The prompts of a corpus, with ids.",
            ("corpus",),
            {"corpus": "corpora/{corpus}.parquet"},
            ("layerwise.corpora.sources", "layerwise.corpora.filters",
             "layerwise.corpora.table:write_corpus"),
            _corpus_settings,
            _corpus_inputs,
            _corpus_outside,
            ("datasets",),
        ),
        Stage(
            "make_views",
            "Augmented copies of each prompt.",
            ("corpus",),
            {"views": "corpora/{corpus}.views.parquet"},
            ("layerwise.corpora.augment", "layerwise.corpora.table:read_corpus",
             "layerwise.corpora.table:write_views"),
            lambda config, corpus: config.corpora[corpus].views.keyed(),
            lambda config, corpus: {"corpus": [Input(Job("make_corpus", (corpus,)), "corpus")]},
            libraries=("nlpaug",),
        ),
        Stage(
            "make_images",
            "The images of a corpus, with ids and labels.",
            ("corpus",),
            {"corpus": "images/{corpus}.parquet"},
            ("layerwise.corpora.images_sources", "layerwise.corpora.images_table:write_images"),
            _corpus_settings,
            outside=_corpus_outside,
            libraries=("datasets", "pillow"),
        ),
        Stage(
            "draw_image_views",
            "What each view of each image does: crop, flip, jitter, grey, blur.",
            ("corpus",),
            {"views": "images/{corpus}.views.parquet"},
            ("layerwise.corpora.images_views", "layerwise.corpora.images_table:read_images",
             "layerwise.corpora.images_table:write_views"),
            lambda config, corpus: config.corpora[corpus].views.keyed(),
            lambda config, corpus: {"corpus": [_corpus(config, corpus)]},
            libraries=("kornia", "torch"),
        ),
        Stage(
            "train_nano",
            "A small model that is trained here: a folder for each checkpoint, and the losses.",
            ("model",),
            {"stamp": f"nano/{{model}}/{MARKER}", "losses": "nano/{model}/losses.csv"},
            ("layerwise.models.nano:train", "layerwise.models.nano_images:train",
             "layerwise.corpora.paragraphs:read_paragraphs",
             "layerwise.corpora.table:read_prompts", "layerwise.corpora.images_table:read_images"),
            lambda config, model: config.nano[model].keyed(),
            _nano_inputs,
            libraries=("torch", "transformers"),
            more_files=_nano_files,
        ),
        Stage(
            "convert_gguf",
            "A GGUF model as a folder with safetensors.",
            _RUN,
            {"folder": f"converted/{{model}}/{{revision}}/{MARKER}"},
            ("layerwise.models.gguf:convert",),
            lambda config, model, revision: _model_settings(config, model)["source"],
            outside=_gguf_outside,
            libraries=("torch", "transformers", "gguf"),
        ),
        Stage(
            "extract_activations",
            "Every layer of a model at a checkpoint on a corpus.",
            (*_RUN, "corpus"),
            {"activations": "activations/{model}/{revision}/{corpus}.h5"},
            ("layerwise.activations.extract:extract", "layerwise.corpora.prompts:read",
             "layerwise.models.load:load"),
            _extract_settings,
            _extract_inputs,
            lambda config, model, revision, corpus: _model_outside(config, model, revision),
            ("torch", "transformers"),
            rule="run_model",
            gpu=True,
        ),
        Stage(
            "measure_surprisal",
            "How surprising each prompt is to the model itself; no row where it predicts no next "
            "token.",
            (*_RUN, "corpus"),
            {"surprisals": "surprisal/{model}/{revision}/{corpus}.parquet"},
            ("layerwise.tasks.surprisal", "layerwise.activations.extract:token_ids",
             "layerwise.corpora.table:read_prompts", "layerwise.models.load:load"),
            _surprisal_settings,
            lambda config, model, revision, corpus: {
                **_model_inputs(config, model, revision),
                "corpus": [Input(Job("make_corpus", (corpus,)), "corpus")],
            },
            lambda config, model, revision, corpus: _model_outside(config, model, revision),
            ("torch", "transformers"),
            gpu=True,
        ),
        Stage(
            "extract_shard",
            "The same of a part of the corpus' prompts, where extract.shards asks for parts.",
            (*_RUN, "corpus", "shard"),
            {"activations": "activations/{model}/{revision}/{corpus}.shards/{shard}.h5"},
            ("layerwise.activations.shards", "layerwise.activations.extract:extract",
             "layerwise.corpora.prompts:read", "layerwise.models.load:load"),
            lambda config, model, revision, corpus, shard: [
                _extract_settings(config, model, revision, corpus), shard, config.extract.shards
            ],
            _shard_inputs,
            lambda config, model, revision, *_: _model_outside(config, model, revision),
            ("torch", "transformers"),
            gpu=True,
        ),
        Stage(
            "compute_metrics",
            "The metrics of every layer, every prompt's own values, and those along the sequence.",
            (*_RUN, "corpus"),
            {"metrics": "metrics/{model}/{revision}/{corpus}.parquet",
             "prompts": "metrics/{model}/{revision}/{corpus}.prompts.parquet",
             "positions": "metrics/{model}/{revision}/{corpus}.positions.parquet"},
            ("layerwise.metrics.table:compute", "layerwise.metrics.sequence:compute"),
            lambda config, model, revision, corpus: config.metrics.keyed(),
            lambda config, model, revision, corpus: {
                "activations": [
                    Input(Job("extract_activations", (model, revision, corpus)), "activations")
                ]
            },
            libraries=("numpy", "scipy"),
            rule="compute_metrics",
        ),
        Stage(
            "make_tasks",
            "The data of the quickstart's tasks, in MTEB's schema.",
            (),
            {"stamp": f"tasks/{MARKER}"},
            ("layerwise.tasks.quickstart:make_tasks",
             "layerwise.corpora.paragraphs:read_paragraphs"),
            inputs=lambda config: {"texts": [Input(Job("unpack_wikipedia"), "texts")]},
            more_files=_task_files,
        ),
        Stage(
            "list_task_texts",
            "The distinct texts of a task.",
            ("task",),
            {"texts": "tasks/{task}.texts.parquet"},
            ("layerwise.tasks.texts",),
            lambda config, task: task,
            _task_inputs,
            _task_outside,
            ("mteb",),
        ),
        Stage(
            "embed_task",
            "Every text of a task at every layer; there until the task is scored.",
            (*_RUN, "task"),
            {"embeddings": "embeddings/{model}/{revision}/{task}.h5"},
            ("layerwise.activations.embed", "layerwise.models.load:load",
             "layerwise.tasks.layout:readings", "layerwise.tasks.layout:VERSION",
             "layerwise.tasks.prompts", "layerwise.tasks.texts:read_texts",
             "layerwise.corpora.images_table:read_images"),
            _embed_settings,
            _embed_inputs,
            lambda config, model, revision, task: _model_outside(config, model, revision),
            ("torch", "transformers"),
            rule="run_model",
            gpu=True,
        ),
        Stage(
            "score_task",
            "The scores of every layer on a task; beside it a folder with MTEB's own JSON.",
            (*_RUN, "task"),
            {"scores": "scores/{model}/{revision}/{task}.parquet"},
            ("layerwise.tasks.score:score_task",),
            lambda config, model, revision, task: _without_machine(config.scoring_of(model)),
            _score_inputs,
            lambda config, model, revision, task: _task_outside(config, task),
            ("mteb", "scikit-learn", "numpy"),
            rule="score_tasks",
        ),
        Stage(
            "list_labelled_texts",
            "The distinct texts of a task of one's own labels.",
            ("task",),
            {"texts": "labelled/{task}.parquet"},
            ("layerwise.tasks.labelled:texts_of", "layerwise.tasks.texts:write_texts"),
            lambda config, task: [task, _placeless(config.own_tasks[task].keyed())],
            _labelled_inputs,
            _labels_outside,
        ),
        Stage(
            "score_labels",
            "The scores of every layer on a task of one's own labels; and what the probes behind "
            "them find beside: neighbours, control, selectivity.",
            (*_RUN, "task"),
            {"scores": "label_scores/{model}/{revision}/{task}.parquet",
             "probes": "probes/{model}/{revision}/{task}.parquet"},
            ("layerwise.tasks.labelled:score_labelled",),
            lambda config, model, revision, task: [
                _without_machine(config.scoring_of(model)),
                _placeless(config.own_tasks[task].keyed()),
            ],
            _labels_inputs,
            _labels_outside,
            ("scikit-learn", "numpy", "scipy"),
            rule="score_tasks",
        ),
        Stage(
            "list_items",
            "The questions or sentence pairs of a task that is scored from token states.",
            ("task",),
            {"listed": "items/{task}.parquet"},
            ("layerwise.tasks.items", "layerwise.corpora.paragraphs:read_paragraphs"),
            lambda config, task: config.token_tasks[task].keyed(),
            _items_inputs,
            _items_outside,
            ("datasets",),
        ),
        Stage(
            "score_tokens",
            "The scores of every layer on a task that is scored from token states; and each "
            "against what it is paired with.",
            (*_RUN, "task"),
            {"scores": "token_scores/{model}/{revision}/{task}.parquet",
             "paired": "paired/{model}/{revision}/{task}.parquet"},
            ("layerwise.tasks.token_scores:score_tokens", "layerwise.models.load:load"),
            _tokens_settings,
            _tokens_inputs,
            lambda config, model, revision, task: _model_outside(config, model, revision),
            ("torch", "transformers"),
            rule="score_tokens",
            gpu=True,
        ),
        Stage(
            "associate_metrics",
            "What the metrics of a study have to do with its scores.",
            ("study",),
            {"associations": "associations/{study}.parquet"},
            ("layerwise.association.table:associate",),
            _associate_settings,
            _associate_inputs,
            libraries=("numpy", "scipy"),
        ),
        Stage(
            "check_picks",
            "Whether there are enough prompts to choose a layer by each metric.",
            (*_RUN, "corpus"),
            {"picks": "picks/{model}/{revision}/{corpus}.parquet"},
            ("layerwise.association.stability:stability",
             "layerwise.metrics.registry:directions"),
            lambda config, model, revision, corpus: {
                "metrics": config.metrics.keyed(),
                "directions": dict(config.association.directions),
                "seed": config.association.seed,
            },
            lambda config, model, revision, corpus: {
                "activations": [
                    Input(Job("extract_activations", (model, revision, corpus)), "activations")
                ]
            },
            libraries=("numpy", "scipy"),
            rule="compute_metrics",
        ),
        Stage(
            "compare_choices",
            "Which layer each metric picks, and how good that is; and the same over models.",
            ("study",),
            {"choices": "choices/{study}.parquet", "summary": "choices/{study}.csv"},
            ("layerwise.association.choice", "layerwise.metrics.registry:directions"),
            _associate_settings,
            _choose_inputs,
            libraries=("numpy", "scipy"),
        ),
        Stage(
            "compare_layers",
            "How alike all layers of a study's models and checkpoints are: CKA and RSA.",
            ("study",),
            {"similarities": "similarities/{study}.parquet"},
            ("layerwise.similarity:table",),
            lambda config, study: {
                "points": targets.points(config, study),
                "tokens": config.studies[study].tokens,
            },
            _compare_inputs,
            libraries=("numpy", "scipy"),
        ),
        Stage(
            "import_published",
            "Published tables, in the columns of our own.",
            ("published",),
            {"scores": "published/{published}.scores.parquet",
             "metrics": "published/{published}.metrics.parquet"},
            ("layerwise.association.published",),
            outside=_published_outside,
        ),
        Stage(
            "draw_study",
            "A study's figure, the table of what it shows, and its caption.",
            ("study",),
            {"png": "figures/{study}.png", "pdf": "figures/{study}.pdf",
             "caption": "figures/{study}.rst", "table": "tables/{study}.csv"},
            ("layerwise.figures.studies:draw",),
            _draw_settings,
            _draw_inputs,
            libraries=("matplotlib", "seaborn"),
            words=True,
        ),
        Stage(
            "compare_weights",
            "The hash of each checkpoint's weights, and which are equal.",
            (),
            {"stamp": "report/weights.json", "table": "report/weights.csv"},
            ("layerwise.models.checkpoints",),
            inputs=_weights_inputs,
        ),
        Stage(
            "find_best_layers",
            "Each model's best layer: the report's first page.",
            (),
            {"stamp": "report/best_layers.json", "table": "report/best_layers.csv",
             "page": "report/best_layers.rst"},
            ("layerwise.association.best", "layerwise.figures.first_page"),
            _best_settings,
            _best_inputs,
        ),
        Stage(
            "build_explorer",
            "One page that draws any metric and score over depth, training and one another; it "
            "needs no network and no other file.",
            (),
            {"stamp": "report/explore.json", "page": "explore.html"},
            ("layerwise.explore.page:render", "layerwise.explore.gather:gather"),
            _explore_settings,
            _explore_inputs,
            words=True,
        ),
        Stage(
            "fetch_model",
            "What was fetched of a model from the hub.",
            _RUN,
            {"fetched": "fetched/models/{model}/{revision}.json"},
            (),
            _fetch_settings,
        ),
        Stage(
            "fetch_corpus",
            "What was fetched of a corpus from the hub.",
            ("corpus",),
            {"fetched": "fetched/corpora/{corpus}.json"},
            (),
            lambda config, corpus: config.corpora[corpus].source.keyed(),
        ),
        Stage(
            "fetch_task",
            "What was fetched of a task from the hub.",
            ("task",),
            {"fetched": "fetched/tasks/{task}.json"},
            (),
            _fetched_task_settings,
        ),
    )
}  # fmt: skip


def files_table() -> str:
    """Every file of a run as a Markdown table, for the docs."""
    rows = [
        f"| {' '.join(f'`{path}`' for path in stage.files.values())} | {stage.about} "
        f"| `{stage.rule or stage.name}` |"
        for stage in STAGES.values()
    ]
    return "\n".join(["| file | what it holds | made by |", "|---|---|---|", *rows])
