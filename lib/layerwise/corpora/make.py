"""Make the files of a corpus and of its views, of texts, images or recordings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerwise.config.corpora import (
    AudioCorpus,
    AudioViews,
    CorpusSettings,
    ImageCorpus,
    ImageViews,
    ViewSettings,
)
from layerwise.corpora import prompts


def make_corpus(
    target: Path,
    name: str,
    settings: CorpusSettings | ImageCorpus | AudioCorpus,
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
    if not isinstance(settings, CorpusSettings):
        from layerwise.corpora.media_sources import choose, open_media

        media = open_media(settings)
        table, counts = choose(media, settings)
        facts |= {**media.facts, "labels": table["label"].value_counts().sort_index().to_dict()}
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
    settings: ViewSettings | ImageViews | AudioViews,
    *,
    processes: int = 1,
    **facts: Any,
) -> None:
    """Augment the prompts of a corpus and write the views; of images and recordings
    only the parameters."""
    table = prompts.read_corpus(corpus)
    if isinstance(settings, ImageViews):
        from layerwise.corpora import image_views

        views = image_views.draw(table, settings)
    elif isinstance(settings, AudioViews):
        from layerwise.corpora import audio_views

        views = audio_views.draw(table, settings)
    else:
        from layerwise.corpora.views import augment

        views = augment(table, settings, processes)
    prompts.write_views(target, corpus, views, settings.n, **facts)
