"""Tasks of a user's own labels: texts, images, recordings or words with classes or numbers.

============== ============== ==================================================================
kind           task type      score
============== ============== ==================================================================
classification Classification accuracy of a linear probe on held-out texts
regression     Regression     R² of a linear probe on held-out texts
pairs          STS            Spearman's correlation of cosine and label; nothing is trained
tags           Tagging        accuracy of a linear probe on words of held-out sentences; its
                              control gives each word type a tag at random
============== ============== ==================================================================
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import DisjointSet
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import sem, t

from layerwise.activations.embedding import Word, words_of
from layerwise.config.settings import ScoringSettings
from layerwise.config.tasks import LabelledEntry
from layerwise.corpora.prompts import media_of, read_corpus
from layerwise.corpora.sources import label_column, read_rows
from layerwise.errors import LayerwiseError, check_name
from layerwise.tasks import probes
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labels import class_names, describe_labels, is_missing, read_tagged
from layerwise.tasks.probes import Split
from layerwise.tasks.task import Task, Unit, Vectors, keep_data, normalized
from layerwise.vocabulary import WORDS

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

SHARE_OF_NEAR_COPIES = 0.9
BLOCK = 1000  # rows that are compared with all others at once
FEWEST = 10  # pairs; below, a normal law of the estimate is out of reach
FEWEST_GROUPS = 5  # of pairs; below, there is no interval


@dataclass(frozen=True, eq=False)
class Labels:
    """Labelled texts, images, recordings or words.

    Attributes
    ----------
    kind : str
        As in the config.
    texts : list of lists
        One list of N texts, or two for pairs; of images and recordings the SHA-256 of their
        files, of words `layerwise.activations.embedding.Word`.
    labels : array, shape (N,)
        As `layerwise.tasks.probes.classes` or `layerwise.tasks.probes.numbers` gives them.
    groups : list
        Rows of one group are never on both sides of a split: see `linked`.
    types : list of str, optional
        Word types of words.
    names : tuple of str
        Names of the classes, by their number.
    measure : str
        Name of the score, of `layerwise.tasks.probes`; by default the kind's first.
    n_shuffles : int
        Shuffles of the labels for the probes' control; 0 for none.
    with_values : bool
        Whether scores have their values by group, which `layerwise.choose` compares.
    """

    kind: str
    texts: list[list[Any]]
    labels: Array
    groups: list[Any]
    seed: int = 0
    types: list[str] | None = None
    names: tuple[str, ...] = ()
    measure: str = ""
    n_shuffles: int = probes.SHUFFLES
    with_values: bool = False

    @cached_property
    def splits(self) -> list[Split]:
        """Rows that probes are trained and tested on; raises as `probes.splits`."""
        return probes.splits(self.labels, self.groups, self.seed)

    def check_splits(self) -> None:
        """Refuse rows that cannot be split, as `probes.splits`; nothing is trained on pairs."""
        if self.kind != "pairs":
            _ = self.splits

    def described(self, n_all: int, unit: str = "labelled rows") -> str:
        """How the labels are read, in a line: `layerwise.tasks.labels.describe_labels`."""
        named = [self.names[number] for number in self.labels] if self.names else self.labels
        return describe_labels(self.kind, list(named), n_all, unit)

    def distinct(self) -> list[Any]:
        """Every text once, in order of first use."""
        return list(dict.fromkeys(text for column in self.texts for text in column))

    def rows(self, rows: npt.ArrayLike) -> Labels:
        """Some of the rows, in their order."""
        chosen = np.asarray(rows).tolist()
        return replace(
            self,
            texts=[[column[row] for row in chosen] for column in self.texts],
            labels=self.labels[chosen],
            groups=[self.groups[row] for row in chosen],
            types=self.types and [self.types[row] for row in chosen],
        )

    @cached_property
    def rows_of_texts(self) -> list[Array]:
        """For each column of texts, the places of its texts in `distinct`, shape (N,)."""
        place = {text: row for row, text in enumerate(self.distinct())}
        return [np.array([place[text] for text in column]) for column in self.texts]


def read(task: LabelledEntry, corpus: Path | None = None) -> Labels:
    """Read the labelled texts of a file, or the labelled images or recordings of a corpus.

    Parameters
    ----------
    corpus : Path, optional
        The table of the task's corpus of images or recordings.

    Raises
    ------
    LayerwiseError
        If the file is missing, is no table, lacks a column, a text or a label, or has too few
        rows or classes.
    """
    path = corpus or Path(str(task.file))
    reader = _read_media if corpus else _read_words if task.kind == "tags" else _read_texts
    try:
        data = reader(task, path)
        data.check_splits()
    except LayerwiseError as error:
        named = str(path) in str(error)
        raise error if named else LayerwiseError(f"{path}: {error}", code=error.code) from error
    return data


def _read_media(task: LabelledEntry, path: Path) -> Labels:
    table = read_corpus(path)
    names = table["sha256"].to_list()
    labels, classes = probes.named_classes(table["label"].to_list())
    return Labels(task.kind, [names], labels, names, task.seed, names=classes)


def _read_words(task: LabelledEntry, path: Path) -> Labels:
    """Words of randomly drawn whole sentences, without those of tags in too few sentences."""
    sentences = list(dict.fromkeys(read_tagged(path, task.word, task.tag)))
    order = np.random.default_rng(task.seed).permutation(len(sentences))
    n_words = np.cumsum([len(sentences[number].words) for number in order])
    n_drawn = max(1, int((n_words <= (task.sample or WORDS)).sum()))
    drawn = [sentences[number] for number in order[:n_drawn]]
    n_sentences = Counter(tag for s in drawn for tag in set(s.tags))
    tagged = [pair for s in drawn for pair in zip(words_of(s.words), s.tags, strict=True)]
    frequent = [(word, tag) for word, tag in tagged if n_sentences[tag] >= probes.FOLDS]
    log.info("%s: %d words of %d of %d sentences", path, len(frequent), n_drawn, len(sentences))
    n_left_out = len(tagged) - len(frequent)
    if n_left_out:
        rare = ", ".join(sorted({tag for _, tag in tagged} - {tag for _, tag in frequent}))
        log.warning("%s: %d words are left out, whose tags (%s) are rare", path, n_left_out, rare)
    words = [word for word, _ in frequent]
    labels, tags = probes.named_classes([tag for _, tag in frequent])
    types = [str(word) for word in words]
    texts = list(dict.fromkeys(word.sentence for word in words))
    group = dict(zip(texts, linked([texts]), strict=True))
    groups = [group[word.sentence] for word in words]
    return Labels(task.kind, [words], labels, groups, task.seed, types, tags)


def _read_texts(task: LabelledEntry, path: Path) -> Labels:
    frame = read_rows(path)
    for name in [*task.text_columns, task.label_column, *filter(None, [task.group])]:
        check_name("column", name, frame)
    places = [f"{frame.index.name} {number}" for number in frame.index]
    texts = [frame[name].tolist() for name in task.text_columns]
    for name, column in zip(task.text_columns, texts, strict=True):
        for where, text in zip(places, column, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise LayerwiseError(
                    f"Column {name!r}, {where}: expected a text, got {text!r:.40}; fill the row "
                    "or leave it out.",
                    code="missing",
                )
    classes: tuple[str, ...] = ()
    if task.kind == "classification":
        labels, classes = probes.named_classes(label_column(path, frame, task.label_column))
    else:
        labels = probes.numbers(frame[task.label_column])
    group = frame[task.group].tolist() if task.group else []
    for where, value in zip(places, group, strict=False):
        if is_missing(value):
            raise LayerwiseError(
                f"Column {task.group!r}, {where}: no group is given; fill the row or leave it "
                "out.",
                code="missing",
            )
    groups = linked(texts, class_names(group, "group"))
    return Labels(task.kind, texts, labels, groups, task.seed, names=classes)


def linked(texts: Sequence[Sequence[Any]], group: Sequence[str] = ()) -> list[Any]:
    """For each row the first text of all rows that it is linked with.

    Rows are linked if they share a text or a group, or are near-copies: in each column, their
    texts share 90% of their sequences of five characters. A warning counts near-copies.

    Parameters
    ----------
    texts : sequence of sequences
        One column of texts, or two for pairs; of other inputs what identifies them.
    """
    rows = DisjointSet(range(len(texts[0])))
    first: dict[tuple[str, Any], int] = {}
    for what, column in [*(("text", column) for column in texts), ("group", group)]:
        for row, value in enumerate(column):
            rows.merge(row, first.setdefault((what, value), row))
    exact, n = [rows[row] for row in range(len(texts[0]))], len(texts[0])
    copies: set[int] = set()
    for pair in near_copies(texts):
        if exact[pair[0]] != exact[pair[1]]:
            copies.update(pair)
            rows.merge(*pair)
    if copies:
        log.warning(
            "%d of %d rows are near-copies of others; copies stay together when rows are split "
            "into training and test rows.",
            len(copies),
            n,
        )
    named: dict[int, Any] = {}
    return [named.setdefault(rows[row], text) for row, text in enumerate(texts[0])]


def near_copies(columns: Sequence[Sequence[Any]]) -> Iterator[tuple[int, int]]:
    """Pairs of rows whose texts share most sequences of characters (cosine of binary counts).

    Such texts share some of the rarest fifth of their sequences, so that only texts that do are
    compared; pairs that others link already may be left out.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    if not all(isinstance(text, str) for column in columns for text in column):
        return
    vectorizer = HashingVectorizer(
        analyzer="char_wb", ngram_range=(5, 5), binary=True, alternate_sign=False, dtype=np.float32
    )
    place = {texts: row for row, texts in reversed([*enumerate(zip(*columns, strict=True))])}
    rows = np.array(list(place.values()))
    # A lone surrogate has no UTF-8; the tokenizer replaces it too.
    counts = [
        vectorizer.transform(text.encode("utf-8", "replace").decode() for text in column)
        for column in zip(*place, strict=True)
    ]
    some = counts[0]
    n, starts = np.diff(some.indptr), some.indptr[:-1]
    of_row = np.repeat(np.arange(len(n)), n)
    rarity = np.bincount(some.indices, minlength=some.shape[1])[some.indices]
    order = np.lexsort((some.indices, rarity, of_row))
    n_rare = n - np.ceil(SHARE_OF_NEAR_COPIES**2 * n - 1e-9) + 1
    is_rare = np.arange(len(order)) - starts[of_row] < n_rare[of_row]
    ends = (of_row[is_rare], some.indices[order][is_rare])
    rare = csr_array((np.ones(len(ends[0]), np.float32), ends), some.shape)
    component = np.arange(len(n))
    for start in range(0, len(n), BLOCK):
        shared = (rare[start : start + BLOCK] @ rare.T).tocoo()
        first, second = shared.row + start, shared.col
        # Beyond those that both have among their rarest, one of them has only its others to share.
        most = shared.data + np.maximum((n - n_rare)[first], (n - n_rare)[second])
        close = (first < second) & (most >= SHARE_OF_NEAR_COPIES * np.sqrt(n[first] * n[second]))
        pairs = np.column_stack([first, second])[close]
        for a, b in (part.T for part in np.array_split(pairs, len(pairs) // 10_000 + 1)):
            alike = component[a] != component[b]
            for column in counts:
                a, b = a[alike], b[alike]
                cosines = column[a].multiply(column[b]).sum(axis=1)
                alike = np.asarray(cosines).ravel() >= SHARE_OF_NEAR_COPIES
            links = (np.ones(alike.sum()), (component[a[alike]], component[b[alike]]))
            component = connected_components(csr_array(links, (len(n), len(n))))[1][component]
            yield from zip(rows[a[alike]].tolist(), rows[b[alike]].tolist(), strict=True)


def layer_score(data: Labels, columns: Sequence[Array]) -> Score:
    """Score one layer; the 95% interval is over groups of test rows, or over pairs.

    Parameters
    ----------
    columns : sequence of arrays, shape (N, D)
        Vectors of `data.texts`, one array for each column.
    """
    if data.kind == "pairs":
        return pairs_score(data, cosines(columns))
    return probes.probe(
        columns[0],
        data.labels,
        data.splits,
        data.groups,
        seed=data.seed,
        types=data.types,
        measure=data.measure,
        n_shuffles=data.n_shuffles,
        with_values=data.with_values,
    )


def cosines(columns: Sequence[Array]) -> Array:
    """Cosine of each pair of two arrays of shape (N, D), shape (N,)."""
    first, second = map(normalized, columns)
    return np.asarray(np.einsum("nd,nd->n", first, second, dtype=np.float64))


def pairs_score(data: Labels, similarities: Array) -> Score:
    """Correlate similarities of pairs, shape (N,), with their labels, by ranks (Spearman).

    The interval is over groups of pairs that share texts, on Fisher's z scale; there is none for
    fewer than `FEWEST_GROUPS` groups.

    Returns
    -------
    Score
        Without a score if one side does not vary.

    Raises
    ------
    LayerwiseError
        For fewer than ten pairs.
    """
    n = len(data.labels)
    if n < FEWEST:
        raise LayerwiseError(
            f"{n} pairs are too few for a correlation; give {FEWEST} or more.", code="too_few"
        )
    if np.ptp(similarities) == 0 or np.ptp(data.labels) == 0:
        return Score(None, n_runs=n, why="the similarities of all pairs are alike")
    values = probes.pseudo_values("spearman", similarities, data.labels, data.groups)
    rho = probes.score("spearman", similarities, data.labels)
    if len(values) < FEWEST_GROUPS:
        return Score(rho, n_runs=n, values=values)
    half = t.isf(0.025, len(values) - 1) * sem(values)
    inside = np.clip(rho, -1 + 1e-12, 1 - 1e-12)
    margin = half / (1 - inside**2)
    low, high = np.tanh(np.arctanh(inside) + margin * np.array([-1, 1]))
    return Score(rho, float(low), float(high), n, values=values)


@dataclass(frozen=True)
class LabelledTask(Task):
    """A task of a config's own labels; see `layerwise.tasks.task.Task`.

    Attributes
    ----------
    corpus : Path, optional
        The table of its corpus of images or recordings.
    """

    entry: LabelledEntry
    corpus: Path | None = None

    @property
    def task_type(self) -> str:
        """By its kind."""
        return self.entry.task_type

    def units(self, most: int) -> Iterator[Unit]:  # noqa: ARG002
        """All texts, or the images or recordings of its corpus, at once."""
        media = media_of(read_corpus(self.corpus)) if self.corpus else ()
        keys = [("", text) for text in _labels(self).distinct()]  # probes need all at once
        yield Unit(keys, media={medium.sha256: medium for medium in media})

    def text_of(self, item: Any) -> str:
        """A text, or the sentence of a word."""
        return item.sentence if isinstance(item, Word) else str(item)

    def score(self, selection: None, vectors: Vectors, settings: ScoringSettings) -> Score:  # noqa: ARG002
        """Score one layer."""
        data, scaled = _labels(self), vectors.scaled(settings)
        return layer_score(data, [scaled.of("", column) for column in data.texts])


@keep_data
def _labels(task: LabelledTask) -> Labels:
    return read(task.entry, task.corpus)
