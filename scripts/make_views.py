"""Augment the prompts of a corpus by nlpaug: views 1 … V of each, all different."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the corpus, augment every prompt, write the views."""
    from layerwise.corpora.augment import ViewSettings, augment
    from layerwise.corpora.table import read_corpus, write_views

    settings = ViewSettings.from_config(arguments.settings)
    corpus = read_corpus(arguments.corpus)
    views = augment(corpus, settings, arguments.threads)
    write_views(arguments.output, corpus, views, settings.n, {"settings": asdict(settings)})


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="corpus file (parquet)")
    parser.add_argument(
        "--settings", type=cli.json_argument, default={},
        help="JSON: n, seed, p, cap, actions, on_failure",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, help="views file (parquet)")
    cli.run(main, parser.parse_args())
