"""Fill the tables of a page on claims from the table of a study of the kind `claims`.

    snakemake --cores 2 --configfile presets/published.yaml results/tables/published_claims.csv
    python scripts/check_claims.py results/tables/published_claims.csv docs/published-claims.md

The table is kept beside the page, under the page's name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from layerwise.association.claims_page import fill, page_parts
from layerwise.association.published import read_table
from layerwise.cli import parser, run
from layerwise.figures.labels import in_sentence
from layerwise.files import read_text, replacing


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("table", type=Path, help="table of the study")
    made.add_argument("page", type=Path, help="page whose tables are filled")
    return made.parse_args()


def filled(page: str, table: pd.DataFrame) -> str:
    """The page with the tables in their places."""
    labels = {str(m): in_sentence(str(m)) for m in table["what"].dropna().unique()}
    return fill(page, page_parts(table, labels))


def main(given: argparse.Namespace) -> None:
    """Fill the page, keep the table."""
    table = read_table(given.table)
    page = filled(read_text(given.page), table)
    with replacing(given.page) as partial:
        partial.write_text(page, encoding="utf-8")
    with replacing(given.page.with_suffix(".csv")) as partial:
        partial.write_bytes(given.table.read_bytes())


if __name__ == "__main__":
    run(main, arguments())
