"""Tasks of one's own labels: the texts or words of a file, and the score of every layer.

============== ============== ==================================================================
kind           task type      score
============== ============== ==================================================================
classification Classification accuracy of a linear probe on texts it was not trained on
regression     Regression     R² of a linear probe, likewise
pairs          STS            Spearman's correlation of cosine and label; nothing is trained
preference     Preference     accuracy of a linear probe on the difference between chosen and
                              rejected, likewise: the reward model that is linear in the layer
                              (Bradley & Terry 1952)
tags           Tagging        accuracy of a linear probe on words of sentences it was not trained
                              on; its control gives each word type a tag at random
============== ============== ==================================================================

Two tables. The first has the columns of all scores (`layerwise.tasks.results`) and ``chance``,
which is null where guessing gives 0. The second has a row a layer of what `layerwise.probes` finds
beside: neighbours, the control and the selectivity; it is empty for pairs.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]

from layerwise import probes, tables
from layerwise.activations.words import words_of
from layerwise.config.tasks import TASK_TYPES, LabelledTask
from layerwise.config.scoring import ScoringSettings
from layerwise.corpora.images_table import read_images, read_labels
from layerwise.errors import LayerwiseError, closest
from layerwise.probes import Probe
from layerwise.progress import Progress
from layerwise.statistics import rank
from layerwise.tables import Kind
from layerwise.tasks import conll, joined, results
from layerwise.tasks.joined import Joiner, Unit, normalized
from layerwise.tasks.layout import Embeddings
from layerwise.tasks.own_rows import read_rows
from layerwise.tasks.prompts import key_of
from layerwise.tasks.texts import TaskTexts
from layerwise.vocabulary import WORDS

log = logging.getLogger(__name__)

SCORES = Kind("layerwise.scores", 1)
PROBES = Kind("layerwise.probes", 1)

PROBE_COLUMNS = {
    "model": "string", "revision": "string", "task": "string", "task_type": "string",
    "layer": "int32", "depth": "float64", "tokens": "string", "pooling": "string",
    "readout": "string", "layers": "string", "linear": "float64", "low": "float64",
    "high": "float64", "neighbours": "float64", "neighbours_low": "float64",
    "neighbours_high": "float64", "control": "float64", "selectivity": "float64",
    "chance": "float64", "penalty": "float64", "n_train": "int32", "n_test": "int32",
}  # fmt: skip

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Labelled:
    """Labelled texts.

    Attributes
    ----------
    kind : str
        As in `layerwise.config.tasks`.
    texts : list of lists of str, or of Word
        One list for each column of texts, all of the same length.
    labels : array, shape (N,)
        As `layerwise.probes` wants them; of preferences 1 where the first of the two that are
        compared was chosen, which a coin decides.
    groups : list
        Rows of the same are kept together: those that share a text, in whatever columns, or the
        task's `group`, and all that such rows link. Of words their sentence.
    types : list of str, optional
        Of words: which word each row is, whatever its sentence.
    """

    kind: str
    texts: list[list[Any]]
    labels: Array
    groups: list[Any]
    seed: int = 0
    types: list[str] | None = None

    def distinct(self) -> list[Any]:
        """Every text once, in order of first use."""
        return list(dict.fromkeys(text for column in self.texts for text in column))


def read(task: LabelledTask, images: Path | None = None) -> Labelled:
    """The labelled texts of a file, or the labelled images of a corpus.

    An image stands there by the SHA-256 of its bytes.

    Parameters
    ----------
    images : Path, optional
        The file of the task's corpus of images, if it has one.

    Raises
    ------
    LayerwiseError
        If the file is missing, empty or no table, lacks a column, or holds a row without text or
        label; if there are too few rows, or labels of one class or one value alone.
    """
    if images is not None:
        return _of_images(task, images)
    if task.kind == "tags":
        return _of_words(task)
    path = Path(str(task.file))
    frame = read_rows(path)
    wanted = [*task.text_columns, *filter(None, [task.label_column, task.group])]
    for name in wanted:
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, map(str, frame.columns))}; there "
                f"are {', '.join(map(str, frame.columns))}."
            )
    texts = [_texts(frame[name], f"{path}, column {name!r}") for name in task.text_columns]
    try:
        return _labelled(task, frame, texts)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}: {error}") from error


def _of_images(task: LabelledTask, path: Path) -> Labelled:
    pictures, _, _ = read_images(path)
    known = read_labels(path)
    if len(known) < len(pictures):
        missing = next(p.name for p in pictures if p.name not in known)
        raise LayerwiseError(
            f"{path}: {len(pictures) - len(known)} of {len(pictures)} images have no label (the "
            f"first is {missing!r}); give the source a label column, or one folder a class."
        )
    names = [picture.sha256 for picture in pictures]
    try:
        labels = probes.classes([known[picture.name] for picture in pictures])
        probes.splits(labels, names, task.seed)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}: {error}") from error
    return Labelled(task.kind, [names], labels, names, task.seed)


def _of_words(task: LabelledTask) -> Labelled:
    """The words of sentences drawn until there are as many as the task takes.

    Words whose tag is in too few of the sentences to be on both sides of every split are left out
    and named in the log.
    """
    path = Path(str(task.file))
    sentences = list(dict.fromkeys(conll.read(path, task.word, task.tag)))
    n_words = sum(len(s.words) for s in sentences)
    most = task.sample or WORDS
    drawn: list[conll.Sentence] = []
    n = 0
    for place in np.random.default_rng(task.seed).permutation(len(sentences)):
        n += len(sentences[place].words)
        if n > most and drawn:
            break
        drawn.append(sentences[place])
    words = [word for s in drawn for word in words_of(s.words)]
    tags = [tag for s in drawn for tag in s.tags]
    within = Counter(tag for s in drawn for tag in set(s.tags))
    rare = sorted(tag for tag, count in within.items() if count < probes.FOLDS)
    kept = [row for row, tag in enumerate(tags) if within[tag] >= probes.FOLDS]
    log.info(
        "%s: %d of %d words, of %d of %d sentences", path, len(kept), n_words, len(drawn),
        len(sentences),
    )  # fmt: skip
    if rare:
        log.warning(
            "%s: %d words are left out, as their tags (%s%s) are in fewer than %d of the "
            "sentences", path, len(tags) - len(kept), ", ".join(rare[:5]),
            ", …" * (len(rare) > 5), probes.FOLDS,
        )  # fmt: skip
    if len(within) == 1:
        raise LayerwiseError(f"{path}: all {len(tags)} tags are {tags[0]!r}; a probe needs two.")
    if len(within) - len(rare) < 2:
        raise LayerwiseError(
            f"{path}: {len(within) - len(rare)} of {len(within)} tags are in {probes.FOLDS} or "
            f"more of {len(drawn)} sentences, and a probe needs two such; take more sentences "
            "(sample), or other tags."
        )
    words = [words[row] for row in kept]
    groups = [word.sentence for word in words]
    try:
        labels = probes.classes([tags[row] for row in kept])
        probes.splits(labels, groups, task.seed)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}: {error}") from error
    return Labelled(task.kind, [words], labels, groups, task.seed, [str(word) for word in words])


def _labelled(task: LabelledTask, frame: pd.DataFrame, texts: list[list[str]]) -> Labelled:
    label = task.label_column
    given = [] if label is None else frame[label].tolist()
    if task.kind == "classification":
        labels = probes.classes(given)
    elif label is not None:
        labels = probes.numbers(given)
    else:
        same = sum(one == other for one, other in zip(*texts, strict=True))
        if same:
            raise LayerwiseError(
                f"{same} of {len(texts[0])} rows have the same text chosen and rejected; leave "
                "them out."
            )
        labels = np.random.default_rng(task.seed).permutation(len(frame)) % 2
    groups = _linked(texts, list(frame[task.group]) if task.group else None)
    if task.kind != "pairs":
        probes.splits(labels, groups, task.seed)  # says at once what cannot be split
    return Labelled(task.kind, texts, labels, groups, task.seed)


def _linked(texts: list[list[str]], group: list[Any] | None) -> list[str]:
    """Of each row the first text of those it is linked with by a shared text or group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(texts[0])
    values = _codes([text for column in texts for text in column]).reshape(len(texts), n)
    if group is not None:
        values = np.vstack([values, values.max() + 1 + _codes([str(g) for g in group])])
    edges = np.tile(np.arange(n), len(values)), n + values.ravel()
    size = n + int(values.max()) + 1
    graph = coo_array((np.ones(values.size, np.int8), edges), shape=(size, size))
    part = connected_components(graph, directed=False)[1][:n]
    first = np.unique(part, return_index=True)[1]
    return [texts[0][first[p]] for p in part]


def _codes(values: list[str]) -> Array:
    # An array of objects: one of strings has the longest one's width in every row.
    return np.asarray(pd.factorize(np.array(values, dtype=object))[0])


def _texts(column: pd.Series[Any], where: str) -> list[str]:
    found = column.tolist()
    for place, text in enumerate(found):
        if not isinstance(text, str) or not text.strip():
            raise LayerwiseError(
                f"{where}, row {place} (from 0): {text!r:.40} came where a text should be; mend "
                "the row or leave it out."
            )
    return found


def texts_of(name: str, task: LabelledTask, images: Path | None = None) -> TaskTexts:
    """What every model has to embed; raises as `read`."""
    texts = read(task, images).distinct()
    return TaskTexts(name, TASK_TYPES[task.kind], texts, [""] * len(texts))


@dataclass(frozen=True)
class Found:
    """A layer's score on labelled texts.

    `probe` is None where nothing was trained. `parts`, shape (G,), is what each group of tested
    rows adds to the score, which is their sum; the groups are the same for all layers.
    """

    score: float | None
    low: float | None
    high: float | None
    n: int
    chance: float | None
    probe: Probe | None
    why: str | None = None
    parts: Array | None = field(default=None, compare=False, repr=False)


def layer_score(data: Labelled, columns: Sequence[Array], confidence: float = 0.95) -> Found:
    """The score of a layer.

    Parameters
    ----------
    columns : sequence of arrays, shape (N, D)
        The vectors of `data.texts`, one array for each column.
    confidence : float
        Of the interval: over groups of test rows for probes, over pairs for similarities.
    """
    if data.kind == "pairs":
        first, second = map(normalized, columns)
        cosines = np.einsum("nd,nd->n", first, second, dtype=np.float64)
        rho, influence = rank.spearman(cosines[None], data.labels)
        if not np.isfinite(rho[0]):
            why = "the similarities of all pairs are alike"
            return Found(None, None, None, len(data.labels), None, None, why)
        # Pairs that share a text are not independent.
        texts = _codes([text for column in data.texts for text in column]).reshape(2, -1)
        low, high = rank.fisher_interval(rho, rank.errors(influence, texts), confidence)
        n = len(data.labels)
        parts = np.bincount(_codes(data.groups), (rho[0] + influence[0]) / n)
        ends = float(low[0]), float(high[0])
        return Found(float(rho[0]), *ends, n, None, None, parts=parts)
    preference = data.kind == "preference"
    features = columns[0]
    if preference:
        sign = np.where(data.labels == 1, 1, -1).astype(np.float32)
        features = (columns[0] - columns[1]) * sign[:, None]
    rows = probes.splits(data.labels, data.groups, data.seed)
    found = probes.probe(
        features, data.labels, rows, data.groups, seed=data.seed, confidence=confidence,
        centred=not preference, types=data.types,
    )  # fmt: skip
    chance = 0.5 if preference else None if data.kind == "regression" else found.chance
    return Found(
        found.linear, found.low, found.high, found.n_test, chance, found, parts=found.parts
    )


def score_labelled(
    embeddings: Path,
    name: str,
    task: LabelledTask,
    targets: Mapping[str, Path],
    settings: ScoringSettings | None = None,
    *,
    model: str | None = None,
    revision: str | None = None,
    threads: int = 1,
    images: Path | None = None,
    **facts: Any,
) -> None:
    """Score all layers and readings of an embeddings file and write both tables.

    Parameters
    ----------
    embeddings : Path
        A file of `layerwise.tasks.layout`.
    targets : mapping
        ``scores`` and ``probes``: the tables.
    model, revision : str, optional
        Refuse a file about another one.
    threads : int
        Layers that are scored side by side.
    images : Path, optional
        See `read`.
    **facts
        More for the tables' metadata: key and recipe of the job.

    Raises
    ------
    LayerwiseError
        If a file is not what it should be, a text has no embedding, or a process is killed.
    """
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    settings = settings or ScoringSettings()
    data = read(task, images)
    with Embeddings(embeddings, model=model, revision=revision, task=name) as file:
        units = joined.units(file, settings.layers)
        alike = joined.first_alike(units, file, file.alike())
        distinct = list(dict.fromkeys(alike[unit] for unit in units))
        about: dict[str, Any] = {"model": file.model, "revision": file.revision, "task": name}
        made_with: dict[str, Any] = {
            key: str(file.attributes[key])
            for key in ("dtype", "weights_sha256") if key in file.attributes
        }  # fmt: skip
        last = max(file.n_layers - 1, 1)
    work = (delayed(_score)(embeddings, data, unit, settings) for unit in distinct)
    with Progress(len(distinct), f"scoring {name}", "layer") as bar:
        found: dict[Unit, Found] = {}
        done: Iterator[Found] = Parallel(n_jobs=threads, return_as="generator")(work)
        try:
            for unit, one in zip(distinct, done, strict=True):
                found[unit] = one
                bar.update()
        except BrokenProcessPool as error:
            raise LayerwiseError(
                f"A process that scored {name} was killed, most likely because memory ran out; "
                "lower scoring.threads."
            ) from error
    about["task_type"] = TASK_TYPES[task.kind]
    scores: list[dict[str, Any]] = []
    probed: list[dict[str, Any]] = []
    for unit in units:
        one = found[alike[unit]]
        row = {**about, **unit.reading._asdict(), "layers": unit.layers, "layer": unit.layer,
               "depth": unit.layer / last}  # fmt: skip
        scores.append(
            {**row, "subset": "default", "split": "test", "main_score": one.score,
             "score_low": one.low, "score_high": one.high, "n_runs": one.n, "why": one.why,
             "chance": one.chance}
        )  # fmt: skip
        if one.probe is not None:
            probed.append({**row, **asdict(one.probe), "selectivity": one.probe.selectivity})
    facts |= {**about, **made_with, "settings": settings.plain()}
    schema = pa.schema([(n, pa.type_for_alias(kind)) for n, kind in PROBE_COLUMNS.items()])
    table = pa.Table.from_pylist(probed, schema=schema)
    tables.write(targets["probes"], table, kind=PROBES, **facts)
    schema = results.schema().append(pa.field("chance", pa.float64()))
    table = pa.Table.from_pylist(scores, schema=schema)
    tables.write(targets["scores"], table, kind=SCORES, **facts)


def _score(path: Path, data: Labelled, unit: Unit, settings: ScoringSettings) -> Found:
    from layerwise.tasks.score import one_thread

    with one_thread(), Embeddings(path) as file:
        values = Joiner(file, normalize=settings.normalize).read(unit)
        if settings.normalize:
            values = normalized(values)
        rows = {key: row for row, key in enumerate(file.keys)}
        prompt = json.loads(file.attributes.get("prompts", "{}")).get("", "")
    try:
        columns = [values[[rows[key_of(prompt, t)] for t in column]] for column in data.texts]
    except KeyError as error:
        raise LayerwiseError(
            f"{path} was made for other texts than the task has; delete it and run snakemake "
            "again."
        ) from error
    return layer_score(data, columns, settings.confidence)
