"""Choose the images of a corpus: each looked at whole, a seeded sample that can grow.

python scripts/make_images.py --corpus digits
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """List the source, read the images of the sample, write the corpus."""
    from layerwise.corpora.images_sources import choose, label_counts, of_classes, open_images
    from layerwise.corpora.images_table import write_images

    name = run.names["corpus"]
    settings = run.config.corpora[name]
    source = of_classes(open_images(settings.images), settings.classes, settings.sample.seed)
    chosen = choose(source, settings.sample, settings.damaged, 100_000_000)
    write_images(
        run.files["corpus"], name, chosen, key=run.stamp.key, recipe=run.stamp.recipe,
        counts=chosen.counts, labels=label_counts(chosen.labels), **source.facts,
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("make_images", main, __doc__)
