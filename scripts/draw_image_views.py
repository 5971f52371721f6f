"""Draw what the views of a corpus' images do: crop, flip, jitter, grey, blur."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the corpus, draw for every image, write what was drawn."""
    from layerwise.corpora.images_table import read_images, write_views
    from layerwise.corpora.images_views import draw
    from layerwise.progress import Progress

    name = run.names["corpus"]
    settings = run.config.corpora[name].views
    pictures, sizes, _ = read_images(run.input("corpus"))
    drawn = []
    with Progress(len(pictures), f"views of {name}", "image") as bar:
        for picture, size in zip(pictures, sizes, strict=True):
            drawn.append(draw(picture.name, picture.sha256, size, settings))
            bar.update()
    write_views(
        run.files["views"], name, pictures, drawn, key=run.stamp.key, recipe=run.stamp.recipe
    )


if __name__ == "__main__":
    cli.run_job("draw_image_views", main, __doc__)
