"""Make the augmented copies of a corpus of texts (nlpaug), images (kornia) or recordings."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the corpus, augment, write the views."""
    from layerwise.corpora.prompts import make_views

    settings = arguments.config.corpora[arguments.corpus].views
    make_views(
        arguments.output,
        arguments.prompts,
        settings,
        processes=arguments.threads,
        key=arguments.key,
    )


if __name__ == "__main__":
    files = {"prompts": "corpus to read", "output": "views to write"}
    script.run(main, script.parser(__doc__, "corpus", stage="views", **files))
