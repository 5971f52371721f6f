"""Make the augmented copies of a corpus: prompts by nlpaug, images by kornia."""

from __future__ import annotations

import argparse

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the corpus, augment, write the views."""
    from layerwise.corpora.make import make_views

    settings = script.config_of(arguments).corpora[arguments.corpus].views
    make_views(
        arguments.output,
        arguments.prompts,
        settings,
        processes=arguments.threads,
        key=arguments.key,
    )


if __name__ == "__main__":
    script.run(
        main,
        script.files(
            script.parser(__doc__, "corpus"), prompts="corpus to read", output="views to write"
        ),
    )
