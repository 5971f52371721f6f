"""Select the prompts or images of a corpus: filter its source and draw a stable sample."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.workflow import script

if TYPE_CHECKING:
    from layerwise.config.corpora import CorpusSettings
    from layerwise.config.images import ImageCorpus


def main(arguments: argparse.Namespace) -> None:
    """Open the source, select, write the corpus."""
    from layerwise.config.images import ImageCorpus

    entry = script.config_of(arguments).corpora[arguments.corpus]
    (write_images if isinstance(entry, ImageCorpus) else write_texts)(arguments, entry)


def write_texts(arguments: argparse.Namespace, entry: CorpusSettings) -> None:
    """Select prompts and write them."""
    from layerwise.corpora.filters import select
    from layerwise.corpora.sources import open_source
    from layerwise.corpora.table import Corpus, write_corpus

    rows = open_source(entry.source, arguments.texts)
    chosen = select(rows, entry.filters, entry.sample, total=rows.total, words=rows.words)
    write_corpus(
        arguments.output,
        Corpus(arguments.corpus, chosen.prompt_ids, chosen.texts, chosen.n_tokens),
        key=arguments.key,
        counts=chosen.counts,
        **rows.facts,
    )


def write_images(arguments: argparse.Namespace, entry: ImageCorpus) -> None:
    """Select images and write them."""
    from layerwise.corpora import images_table
    from layerwise.corpora.images_sources import choose, label_counts, of_classes, open_images

    source = of_classes(open_images(entry.images), entry.classes, entry.sample.seed)
    chosen = choose(source, entry.sample, entry.damaged, entry.max_pixels)
    images_table.write_images(
        arguments.output,
        arguments.corpus,
        chosen,
        key=arguments.key,
        counts=chosen.counts,
        labels=label_counts(chosen.labels),
        **source.facts,
    )


if __name__ == "__main__":
    options = script.parser(__doc__, "corpus")
    options.add_argument(
        "--texts", type=Path, help="texts to select from, if the workflow made them"
    )
    script.run(main, script.files(options, output="corpus to write"))
