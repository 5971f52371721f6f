"""Make the augmented copies of a corpus: prompts by nlpaug, images by kornia."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from layerwise.workflow import script

if TYPE_CHECKING:
    from layerwise.config.corpora import CorpusSettings
    from layerwise.config.images import ImageCorpus


def main(arguments: argparse.Namespace) -> None:
    """Read the corpus, augment, write the views."""
    from layerwise.config.images import ImageCorpus

    entry = script.config_of(arguments).corpora[arguments.corpus]
    (write_image_views if isinstance(entry, ImageCorpus) else write_views)(arguments, entry)


def write_views(arguments: argparse.Namespace, entry: CorpusSettings) -> None:
    """Augment prompts."""
    from layerwise.corpora import table
    from layerwise.corpora.augment import augment

    corpus = table.read_corpus(arguments.prompts)
    views = augment(corpus, entry.views, arguments.threads)
    table.write_views(arguments.output, corpus, views, entry.views.n, key=arguments.key)


def write_image_views(arguments: argparse.Namespace, entry: ImageCorpus) -> None:
    """Draw what the views of each image do."""
    from layerwise.corpora import images_table
    from layerwise.corpora.images_views import draw
    from layerwise.progress import Progress

    pictures, sizes, _ = images_table.read_images(arguments.prompts)
    views = []
    with Progress(len(pictures), f"views of {arguments.corpus}", "image") as bar:
        for picture, size in zip(pictures, sizes, strict=True):
            views.append(draw(picture.name, picture.sha256, size, entry.views))
            bar.update()
    images_table.write_views(
        arguments.output, arguments.corpus, pictures, views, key=arguments.key
    )


if __name__ == "__main__":
    script.run(
        main,
        script.files(
            script.parser(__doc__, "corpus"), prompts="corpus to read", output="views to write"
        ),
    )
