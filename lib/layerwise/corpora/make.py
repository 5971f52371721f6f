"""Make the files of a corpus and of its views, of texts or of images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerwise.config.corpora import CorpusSettings, ViewSettings
from layerwise.config.images import ImageCorpus, ImageViews
from layerwise.corpora import prompts


def make_corpus(
    target: Path,
    name: str,
    settings: CorpusSettings | ImageCorpus,
    *,
    texts: Path | Iterable[str] | None = None,
    **facts: Any,
) -> None:
    """Read a source, filter and sample it, and write the corpus.

    Parameters
    ----------
    texts : Path or iterable of str, optional
        As in `sources.open_texts`.
    **facts
        Key and provenance, for the file's metadata.
    """
    if isinstance(settings, ImageCorpus):
        from layerwise.corpora.image_sources import choose, open_images

        images = open_images(settings.images)
        table, counts = choose(images, settings)
        facts |= {**images.facts, "labels": table["label"].value_counts().sort_index().to_dict()}
    else:
        from layerwise.corpora.select import select
        from layerwise.corpora.sources import open_texts

        pairs, about = open_texts(settings.source, texts)
        table, counts = select(pairs, settings.filters, settings.sample)
        facts |= about
    prompts.write_corpus(target, name, table, counts=counts, **facts)


def make_views(
    target: Path,
    corpus: Path,
    settings: ViewSettings | ImageViews,
    *,
    processes: int = 1,
    **facts: Any,
) -> None:
    """Augment the prompts of a corpus and write the views; those of images are only drawn."""
    table = prompts.read_corpus(corpus)
    if isinstance(settings, ImageViews):
        from layerwise.corpora.image_views import draw

        views = draw(table, settings)
    else:
        from layerwise.corpora.views import augment

        views = augment(table, settings, processes)
    prompts.write_views(target, corpus, views, settings.n, **facts)
