"""Clean the Wikipedia slice in gensim's test data of its markup: one row a paragraph."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the dump and write the table of paragraphs."""
    from layerwise.corpora.wikipedia import unpack

    unpack(arguments.output, arguments.dump)


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--dump", type=Path, help="MediaWiki export (.xml.bz2); default: gensim's")
    parser.add_argument("--output", type=Path, required=True, help="table to write (parquet)")
    cli.run(main, parser.parse_args())
