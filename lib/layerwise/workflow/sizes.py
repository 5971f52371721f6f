"""How much a job will write, and how long it will score, before anything has run.

Bytes come from shapes: layers x width x texts x readings. A model's shape is read off its
configuration, without loading it; the texts of a task that are not listed yet come from mteb's own
statistics. What cannot be known is None, never taken from another model.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from layerwise.config import Config
from layerwise.config.images import ImageCorpus
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import encode
from layerwise.tasks.names import PAIRWISE, TYPES
from layerwise.workflow.targets import Job

# As transformers' configurations name them.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
LONGEST = ("max_position_embeddings", "n_positions")

# A layer's score takes so many seconds, and so many for each thousand rows of a width of 1,000, by
# type of task, on one core. Rough: set by hand, to tell large tasks from small ones.
SECONDS = {
    "Classification": (0.2, 0.2),
    "Clustering": (0.1, 0.3),
    "PairClassification": (0.02, 0.01),
    "MultilabelClassification": (0.5, 0.5),
    "Reranking": (0.05, 0.03),
    "Retrieval": (0.2, 0.1),
    "Summarization": (0.1, 0.05),
    "STS": (0.01, 0.005),
}
# A row of a table of single prompts' values, and a layer's result in mteb's JSON with its
# metadata, on a file system with blocks of 4 KiB.
ROW_BYTES, RESULT_BYTES = 10, 8192
# A process with mteb, torch and scikit-learn in it.
PROCESS_BYTES = 10**9
# Documents of a retrieval task whose similarities with all queries mteb computes at one time.
RETRIEVED = 50_000
# Texts of mteb's statistics are in characters; English has about so many in a token.
CHARACTERS_PER_TOKEN = 4.0
# A corpus counts words; few texts have more tokens than so many a word.
TOKENS_PER_WORD = 2
# Prefixes grow by √2, so that their lengths sum to at most so many times the longest.
PREFIXES = 3.5


# What mteb's statistics call the columns of texts, with or without documents_ or queries_.
COLUMNS = ("text_statistics", "text1_statistics", "text2_statistics")


class Shape(NamedTuple):
    """Layers, the embedding output included, width, and the most tokens that the model takes:
    None if there is no limit, or none is told."""

    n_layers: int
    hidden: int
    longest: int | None = None


class Texts(NamedTuple):
    """The texts of a task.

    Attributes
    ----------
    distinct : int
        Each of which is embedded once.
    rows : int
        That the evaluator goes through at each layer, with repetitions.
    characters : int
        Of the distinct texts.
    kind : str
        mteb's type of the task; empty if it is not known.
    queries : int
        Of the distinct texts of a retrieval task, those that are asked for; 0 of other tasks.
    """

    distinct: int
    rows: int
    characters: int
    kind: str
    queries: int = 0


class Sizes:
    """Sizes of what a config asks for.

    Parameters
    ----------
    config : Config
    known : mapping, optional
        As `plain` gave it for the same config.
    """

    def __init__(self, config: Config, known: Mapping[str, Any] | None = None) -> None:
        self.config = config
        known = known or {}
        self._shapes = {m: Shape(*s) if s else None for m, s in known.get("shapes", {}).items()}
        self._texts = {t: Texts(*n) if n else None for t, n in known.get("texts", {}).items()}
        self._prompts: dict[str, int | None] = dict(known.get("prompts", {}))

    def plain(self) -> dict[str, Any]:
        """All sizes that a plan of jobs depends on, for the jobs of a run to know the same."""
        if self.config.jobs.unlimited():
            return {}
        return {
            "shapes": {model: self.shape(model) for model in self.config.models},
            "texts": {task: self.texts(task) for task in self.config.tasks},
            "prompts": {corpus: self.prompts(corpus) for corpus in self.config.corpora},
        }

    def shape(self, model: str) -> Shape | None:
        """A model's shape; None if its configuration is not on this machine, or says nothing."""
        if model not in self._shapes:
            self._shapes[model] = self._shape(model)
        return self._shapes[model]

    def _shape(self, model: str) -> Shape | None:
        if model in self.config.nano:
            nano = self.config.nano[model]
            longest = (nano.side**2 + 1) if nano.of_images else None
            return Shape(nano.layers + 1, nano.hidden, longest)
        entry = self.config.models[model]
        last = entry.revisions[-1]
        folders = [Path(self.config.results, "converted", encode(model), encode(last))]
        if hasattr(entry.source, "hub"):
            folders += _cached(entry.source.hub)
        elif not entry.source.gguf_file:
            try:
                folders = [Path(locate(entry.source, last).name)]
            except LayerwiseError:
                return None
        return next(filter(None, map(_shape_in, folders)), None)

    def texts(self, task: str) -> Texts | None:
        """A task's texts, by their list or by mteb's statistics; None if there is neither."""
        if task not in self._texts:
            self._texts[task] = self._listed(task, statistics(task))
        return self._texts[task]

    def _listed(self, task: str, told: Texts | None) -> Texts | None:
        own = task in self.config.own_tasks
        name = f"labelled/{encode(task)}.parquet" if own else f"tasks/{encode(task)}.texts.parquet"
        path = Path(self.config.results) / name
        if not path.is_file():
            return told
        import pyarrow.parquet as pq

        try:
            # Not the images, which may be gigabytes.
            wanted = {"text", "start"} & set(pq.read_schema(path).names)
            table = pq.read_table(path, columns=sorted(wanted))
        except Exception:  # of a damaged file; the job that reads it says so
            return told
        texts = table["text"].to_pylist()
        if "start" in table.column_names:  # words, whose sentences are read once
            texts = list(dict.fromkeys(texts))
        characters = sum(map(len, texts))
        rows = max(told.rows if told else 0, len(table))
        return Texts(len(table), rows, characters, *(told[3:] if told else [""]))

    def prompts(self, corpus: str) -> int | None:
        """A corpus's prompts, by the config or by its file; None if neither says."""
        if corpus not in self._prompts:
            self._prompts[corpus] = self._sampled(corpus)
        return self._prompts[corpus]

    def _sampled(self, corpus: str) -> int | None:
        entry = self.config.corpora[corpus]
        asked = entry.sample.n
        folder = "images" if isinstance(entry, ImageCorpus) else "corpora"
        path = Path(self.config.results, folder, f"{encode(corpus)}.parquet")
        if asked is not None or not path.is_file():
            return asked
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(path).num_rows)
        except Exception:  # of a damaged file; the job that reads it says so
            return None

    def readings(self, model: str) -> list[Any]:
        """The ways in which tasks' texts are read from a model's layers."""
        from layerwise.tasks.layout import readings

        scoring = self.config.scoring_of(model)
        tokens = self.config.extraction(model).tokens
        return readings(tokens, scoring.poolings, scoring.readouts)

    def bytes_of(self, job: Job) -> int | None:
        """What a job of ``extract_activations`` or ``embed_task`` writes; None if not known."""
        model, _revision, item = job.names
        shape = self.shape(model)
        if shape is None:
            return None
        if job.stage == "embed_task":
            from layerwise.tasks.layout import bytes_per_text

            texts = self.texts(item)
            if texts is None:
                return None
            half = self.config.jobs.halves(texts.distinct)
            return texts.distinct * bytes_per_text(self.readings(model), *shape[:2], half=half)
        return self._activations(model, item, shape)

    def _activations(self, model: str, corpus: str, shape: Shape) -> int | None:
        """Pooled states of all views and, at most, what is kept of the longest prompts' tokens:
        spectra, norms and states."""
        extract, entry = self.config.extraction(model, corpus), self.config.corpora[corpus]
        sample = self.prompts(corpus)
        if sample is None:
            return None
        prompts = shape.n_layers * sample
        choices = len(extract.protocols) * len(extract.tokens) * prompts
        pooled = choices * (1 + entry.views.n) * shape.hidden * 4
        of_tokens = extract.spectra or extract.prefixes or extract.keep_states
        longest = self._longest(model, corpus) if of_tokens else 0
        if longest is None:
            return None
        spectra = (choices * 8 + prompts * 4) * longest if extract.spectra else 0
        prefixes = len(extract.tokens) * prompts * round(PREFIXES * longest) * 8
        kept = min(extract.keep_states, sample)
        states = shape.n_layers * kept * longest * shape.hidden * 4
        return (
            (pooled + spectra) * (1 + len(extract.sublayers))
            + (prefixes if extract.prefixes else 0)
            + states
        )

    def stays(self, job: Job) -> int:
        """What a job of ``compute_metrics``, or one that scores, leaves for good, about."""
        model, _revision, item = job.names
        shape = self.shape(model)
        if shape is None or job.stage == "check_picks":  # a row a metric
            return 0
        if job.stage != "compute_metrics":
            from layerwise.tasks.layout import first_stored

            firsts = first_stored(self.readings(model), shape.n_layers)
            return sum(shape.n_layers - first for first in firsts) * RESULT_BYTES
        extract = self.config.extraction(model)
        choices = len(extract.protocols) * len(extract.tokens) * shape.n_layers
        # About six values a prompt: entropies, norms and curvature.
        return choices * (self.prompts(item) or 0) * 6 * ROW_BYTES

    def score_seconds(self, model: str, task: str) -> float | None:
        """Expected seconds of all layers of a model on a task, on one core."""
        shape, texts = self.shape(model), self.texts(task)
        if shape is None or texts is None or texts.kind not in SECONDS:
            return None
        from layerwise.tasks.layout import first_stored

        fixed, each = SECONDS[texts.kind]
        firsts = first_stored(self.readings(model), shape.n_layers)
        layers = sum(shape.n_layers - first for first in firsts)
        return layers * (fixed + each * texts.rows / 1000 * shape.hidden / 1000)

    def score_memory(self, model: str, task: str) -> float | None:
        """Bytes of a process that scores a task: a layer's embeddings as they are and normalised,
        and those that an evaluator asks for at one time, at most all rows.

        A retrieval's documents are asked for `RETRIEVED` at a time, and scaled to unit length
        beside the similarities of each with each query.
        """
        shape, texts = self.shape(model), self.texts(task)
        if shape is None or texts is None:
            return None
        if texts.kind == "Retrieval":
            queries = texts.queries
            some = min(texts.distinct - queries, RETRIEVED)
            rows = 2 * (texts.distinct + queries + some)
            return PROCESS_BYTES + 4 * (rows * shape.hidden + queries * some)
        # A clustering asks set by set, each of distinct texts; similarities of pairs take both
        # sides again, scaled to unit length, and their difference.
        asked = texts.distinct if texts.kind == "Clustering" else texts.rows
        if texts.kind in PAIRWISE:
            asked = 5 * asked // 2
        return PROCESS_BYTES + (2 * texts.distinct + asked) * shape.hidden * 4

    def tokens(self, job: Job) -> int | None:
        """Tokens that a job of ``extract_activations`` or ``embed_task`` runs a model on, about.

        Of a corpus that is not made yet, at most: as if each prompt were as long as may be.
        """
        item = job.names[2]
        if job.stage == "embed_task":
            texts = self.texts(item)
            return None if texts is None else round(texts.characters / CHARACTERS_PER_TOKEN)
        entry = self.config.corpora[item]
        longest = self._longest(job.names[0], item)
        sample = self.prompts(item)
        if sample is None or longest is None:
            return None
        return sample * (1 + entry.views.n) * longest

    def _longest(self, model: str, corpus: str) -> int | None:
        """Most tokens of a prompt, about: by its words, or by what the model takes; None if
        neither is known."""
        shape = self.shape(model)
        filters = getattr(self.config.corpora[corpus], "filters", None)  # images have none
        words = filters.max_tokens if filters is not None else None
        known = [
            self.config.models[model].max_length,
            shape.longest if shape else None,
            words * TOKENS_PER_WORD if words else None,
        ]
        return min(filter(None, known), default=None)

    def unknown(self) -> list[str]:
        """What the limits of a job cannot take into account, a sentence each."""
        if self.config.jobs.unlimited():
            return []
        models = [m for m in self.config.models if self.shape(m) is None]
        tasks = [t for t in self.config.tasks if self.texts(t) is None]
        corpora = [
            corpus
            for corpus in self.config.corpora
            if any(
                (shape := self.shape(model)) and self._activations(model, corpus, shape) is None
                for model in self.config.models
            )
        ]
        told = []
        if models:
            told.append(
                f"jobs: the shape of {', '.join(models)} is not known before its configuration "
                "is here (`snakemake fetch` brings it); gigabytes, disk and minutes do not count "
                "it."
            )
        if tasks:
            told.append(
                f"jobs: the number of texts of {', '.join(tasks)} is not known before they are "
                "listed; gigabytes, disk and minutes do not count them."
            )
        if corpora:
            told.append(
                f"jobs: how many prompts {', '.join(corpora)} will have, or how long, is not "
                "known; gigabytes and disk do not count them. sample.n and filters.max_tokens of "
                "a corpus say it."
            )
        return told


def _shape_in(folder: Path) -> Shape | None:
    """The shape that the configuration in a model's folder tells."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = {**found, **(found.get("text_config") or {})}
        depth = next(int(found[name]) for name in DEPTHS if name in found)
        width = next(int(found[name]) for name in WIDTHS if name in found)
        longest = next((int(found[name]) for name in LONGEST if name in found), None)
        if "patch_size" in found and "image_size" in found:
            longest = (int(found["image_size"]) // int(found["patch_size"])) ** 2 + 1
        return Shape(depth + 1, width, longest)
    except (OSError, ValueError, TypeError, AttributeError, StopIteration):
        return None


def _cached(name: str) -> Iterator[Path]:
    """The folders of a model in the hub's cache, one a checkpoint."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    return folder.iterdir() if folder.is_dir() else iter(())


@cache
def _statistics() -> dict[str, Path]:
    """mteb's own statistics of tasks, a file each; mteb is not imported for them."""
    spec = importlib.util.find_spec("mteb")
    roots = (spec.submodule_search_locations if spec else None) or ()
    folders = [Path(root) / "descriptive_stats" for root in roots]
    return {file.stem: file for folder in folders for kind in TYPES
            for file in (folder / kind).glob("*.json")}  # fmt: skip


def statistics(task: str) -> Texts | None:
    """A task's texts as mteb's statistics have them: the test split, subsets in English.

    Distinct texts of several columns or subsets are added up: those that are in two count twice.
    The training sentences of a classification are not among them.
    """
    path = _statistics().get(task)
    if path is None:
        return None
    splits = json.loads(path.read_text(encoding="utf-8"))
    found = [splits["test"]] if "test" in splits else list(splits.values())
    parts = []
    for split in found:
        subsets = split.get("hf_subset_descriptive_stats") or {}
        english = [s for name, s in subsets.items() if _english(name)]
        parts += english or [split]
    distinct = rows = characters = queries = 0
    for one in parts:
        columns = [s for name, s in one.items() if name.endswith(COLUMNS) and s]
        distinct += sum(s["unique_texts"] for s in columns)
        characters += sum(int(s["unique_texts"] * s["average_text_length"]) for s in columns)
        rows += one["num_samples"] * (2 if "text2_statistics" in one else 1)
        asked = one.get("queries_text_statistics") or {}
        queries += asked.get("unique_texts", 0)
    kind = path.parent.name
    return Texts(distinct, rows, characters, kind, queries if kind == "Retrieval" else 0)


def _english(subset: str) -> bool:
    """Whether a subset's name stands for English alone: en, eng, en-ext, en-en, eng_Latn."""
    parts = subset.lower().replace("_", "-").split("-")
    return all(part in ("en", "eng", "latn", "ext") for part in parts)
