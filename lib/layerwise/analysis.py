"""Analyse a model in memory: shared by the Python face, the layer choice and the callback."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerwise.config.studies import several
from layerwise.corpora.prompts import Medium, in_folder, media
from layerwise.errors import LayerwiseError, check_name
from layerwise.io.files import scratch
from layerwise.progress import Progress
from layerwise.vocabulary import FINAL_NORM, USUAL

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from layerwise.models.load import LoadedModel
    from layerwise.tasks.evaluate import Score
    from layerwise.tasks.labelled import Labels

log = logging.getLogger(__name__)

DEFAULTS = {
    "tokens": USUAL["tokens"],
    **{f"{name}s": USUAL[name] for name in ("protocol", "alpha", "normalization")},
}


# Rows times layers from which labels are scored in several processes; to start one takes 8 s of
# CPU, as scoring 1,500 to 2,500 does.
WORTH_PROCESSES = 10_000


def measure(
    loaded: LoadedModel,
    views: Sequence[Sequence[Any]],
    threads: int = 1,
    **settings: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Extract in a temporary folder and compute metrics.

    Parameters
    ----------
    views : sequence of V + 1 sequences
        The prompts and their augmented copies. Of equal prompts the first counts, as in a
        workflow's corpus.
    threads : int
    **settings
        metrics, tokens, protocols, alphas and normalizations, one or several of each; absent ones
        have the defaults of `layerwise.analyse`.

    Returns
    -------
    metrics, prompts : DataFrame
        As `layerwise.metrics.table.compute`, metrics with the ends of 95% intervals.
    """
    from layerwise.activations.extract import extract
    from layerwise.activations.store import Activations
    from layerwise.config.settings import ExtractSettings, MetricsSettings
    from layerwise.metrics.registry import all_metrics, arrays_for
    from layerwise.metrics.table import compute
    from layerwise.section import parse
    from layerwise.stats import with_intervals

    available, n_views = all_metrics(), len(views) - 1
    rows = _distinct(views[0])
    lists = {name: list(several(value)) for name, value in (DEFAULTS | settings).items()}
    tokens, protocols = lists.pop("tokens"), lists.pop("protocols")
    usual = arrays_for(None)
    lists["metrics"] = lists.get("metrics") or [
        name
        for name, one in available.items()
        if one.min_views <= n_views
        and usual.issuperset(one.arrays)
        and loaded.can_give(one.lacks_of)
    ]
    for name in lists["metrics"]:
        check_name("metric", name, available)
        if not loaded.can_give(available[name].lacks_of):
            raise LayerwiseError(
                f"{name} needs {' and '.join(available[name].inputs)}, which {loaded.name} does "
                "not have: it holds one vector a text, or states without the model.",
                code="unsupported",
            )
        if available[name].min_views > n_views:
            raise LayerwiseError(
                f"{name} compares augmented copies of each text (at least "
                f"{available[name].min_views}, got {n_views}); give them as views=.",
                code="too_few",
            )
    chosen = parse(MetricsSettings, lists)
    arrays = sorted(arrays_for(lists["metrics"]))
    asked = {"tokens": tokens, "protocols": protocols, "arrays": arrays}
    extraction = parse(ExtractSettings, asked)
    with scratch() as folder:
        path = folder / "prompts.h5"
        extract(
            loaded,
            corpus="prompts",
            prompts=[str(row) for row in rows],
            views=[[view[row] for row in rows] for view in views],
            settings=extraction,
            target=path,
            attributes={},
        )
        with Activations(path) as activations:
            table, prompts = compute(activations, chosen, threads)
    return with_intervals(table), prompts


def _distinct(prompts: Sequence[Any]) -> list[int]:
    """Numbers of the prompts that differ from all before them."""
    first: dict[Any, int] = {}
    for row, prompt in enumerate(prompts):
        first.setdefault(getattr(prompt, "sha256", prompt), row)
    if len(first) < len(prompts):
        log.warning(
            "%d of %d prompts equal another and are left out",
            len(prompts) - len(first),
            len(prompts),
        )
    return list(first.values())


def score_labels(
    loaded: LoadedModel, labels: Labels, tokens: str, threads: int = 1
) -> list[Score]:
    """Score every layer on labels, as a config's own task is scored by default."""
    return score_vectors(labels, embed_labels(loaded, labels, tokens), threads)


def embed_labels(
    loaded: LoadedModel, labels: Labels, tokens: str, part: Mapping[str, Any] | None = None
) -> npt.NDArray[Any]:
    """Embed labelled rows with every layer, as a config's own task is read by default.

    Tokens are pooled after the model's final norm: by the model's own pooling if it is one of
    sentence-transformers, else by their mean. Vectors are scaled to unit length if such a model
    does so, and have its default prompt.

    Parameters
    ----------
    part : mapping, optional
        Part of each text, as ``scoring.part`` of a config.

    Returns
    -------
    array, shape (layers, texts, D), float32
        Of the distinct texts.
    """
    from layerwise.activations.embedding import embed, representations_of
    from layerwise.config.settings import TextPart
    from layerwise.section import parse
    from layerwise.tasks.task import normalized

    texts = labels.distinct()
    ways = representations_of(loaded, [tokens], [loaded.embedder.pooling], [FINAL_NORM])
    chosen = None if part is None else parse(TextPart, dict(part), "part")
    vectors = embed(loaded, texts, ways, part=chosen)[0]
    if loaded.embedder.normalizes:
        for layer in vectors:
            layer[...] = normalized(layer)
    return np.asarray(vectors)


def score_vectors(labels: Labels, vectors: npt.NDArray[Any], threads: int = 1) -> list[Score]:
    """Score every layer's vectors, as `embed_labels` gives them, on labels."""
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    is_long = len(vectors) * len(labels.labels) >= WORTH_PROCESSES
    pool = Parallel(threads if is_long else 1, return_as="generator")
    scores: list[Score] = []
    with Progress(len(vectors), "scores", "layer") as bar:
        for score in pool(delayed(_score_layer)(labels, layer) for layer in vectors):
            scores.append(score)
            bar.update()
    return scores


def _score_layer(labels: Labels, vectors: npt.NDArray[Any]) -> Score:
    from layerwise.tasks.labelled import layer_score
    from layerwise.tasks.task import one_thread

    with one_thread():
        return layer_score(labels, [vectors[rows] for rows in labels.rows_of_texts])


def labels_of(prompts: Sequence[Any], labels: Sequence[Any], kind: str | None = None) -> Labels:
    """Prompts with a label each, ready for probes; near-copies stay together.

    Parameters
    ----------
    kind : {'classification', 'regression'}, optional
        By default as `layerwise.tasks.labels.kind_of_labels`.
    """
    from layerwise.corpora.sources import with_class_names
    from layerwise.tasks import probes
    from layerwise.tasks.labelled import Labels, linked
    from layerwise.tasks.labels import KINDS, kind_of_labels

    if kind is not None:
        check_name("kind", kind, KINDS)
    # A column of `datasets` knows the data that it is of.
    features = getattr(getattr(labels, "source", None), "features", None) or {}
    named = with_class_names(labels, features.get(getattr(labels, "column_name", "")))
    kind = kind or kind_of_labels(named)
    labels, named = list(labels), list(named)
    if len(labels) != len(prompts):
        raise LayerwiseError(
            f"There are {len(labels)} labels for {len(prompts)} texts; give each text one.",
            code="wrong_shape",
        )
    names: tuple[str, ...] = ()
    if kind == "regression":
        values = probes.numbers(labels)
    else:
        values, names = probes.named_classes(named)
    # Files have hashes, which are like no other text.
    groups = linked([[getattr(prompt, "sha256", prompt) for prompt in prompts]])
    return Labels(kind, [list(prompts)], values, groups, names=names)


def prompts_of(source: Any, column: str | None = None) -> list[Any]:
    """Texts, images or recordings as a model is given them.

    Parameters
    ----------
    source
        A list, a `datasets.Dataset`, a data frame, a file, or a folder of images or recordings.
    column : str, optional
        Column of a data set, data frame or file; by default ``text``.

    Raises
    ------
    LayerwiseError
        If they cannot be read, or a column is named of a folder or a .txt file.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if column is not None and (path.is_dir() or path.suffix.lower() == ".txt"):
            raise LayerwiseError(
                f"{path} has no columns; leave out the column {column!r} (--text).",
                code="conflict",
            )
        if path.is_dir():
            files = in_folder(path)
            return [files.read(row) for row in range(len(files.ids))]
        if isinstance(source, Path) or path.suffix:
            from layerwise.config.corpora import FileTexts
            from layerwise.corpora.sources import open_texts
            from layerwise.section import parse

            entry = {"file": str(source)} | ({} if column is None else {"column": column})
            return [text for _, text in open_texts(parse(FileTexts, entry))[0]]
    return prompts_in(source, column)


def prompts_in(source: Any, column: str | None = None) -> list[Any]:
    """Texts, images or recordings in memory, as a model is given them.

    Parameters
    ----------
    source
        A list, a `datasets.Dataset` or a data frame.
    column : str, optional
        Column of a data set or data frame; by default ``text``.

    Raises
    ------
    LayerwiseError
        If it is none of these, or has no such column.
    """
    names = getattr(source, "column_names", getattr(source, "columns", None))
    if names is not None and not isinstance(source, Mapping):
        column = column or "text"
        check_name("column", column, names)
        for medium in media():
            source = medium.undecoded(source, column)
        source = source[column]
    is_list = isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping | Set)
    items = list(source) if is_list else []
    if not items:
        raise LayerwiseError(
            "texts: expected a list of texts, images or recordings, a data set, a file or a "
            f"folder, got {source!r:.60}.",
            code="wrong_type",
        )
    return [p if isinstance(p, str) else _medium(n, p) for n, p in enumerate(items)]


def _medium(number: int, item: Any) -> Medium:
    """An object in memory as the library reads it."""
    made = (medium.of_object(str(number), item) for medium in media())
    if (file := item if isinstance(item, Medium) else next(filter(None, made), None)) is not None:
        return file
    expected = ", ".join(medium.objects for medium in media())
    raise LayerwiseError(
        f"texts: expected texts{expected and f', {expected}, or paths of such files'}, got "
        f"{type(item).__name__} at {number}.",
        code="wrong_type",
    )
