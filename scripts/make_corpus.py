"""Select the prompts or images of a corpus: filter its source and draw a stable sample."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Open the source, select, write the corpus."""
    from layerwise.corpora.make import make_corpus

    settings = script.config_of(arguments).corpora[arguments.corpus]
    make_corpus(
        arguments.output, arguments.corpus, settings, texts=arguments.texts, key=arguments.key
    )


if __name__ == "__main__":
    options = script.parser(__doc__, "corpus")
    options.add_argument(
        "--texts", type=Path, help="texts to select from, if the workflow made them"
    )
    script.run(main, script.files(options, output="corpus to write"))
