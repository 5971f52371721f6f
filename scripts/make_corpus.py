"""Choose the prompts of a corpus from a source: filters, then a seeded sample that can grow."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the source, filter and sample it, write the corpus."""
    from layerwise.corpora.filters import Filters, Sample, from_config, select
    from layerwise.corpora.sources import open_source
    from layerwise.corpora.table import Corpus, write_corpus

    filters = from_config(Filters, arguments.filters)
    sample = from_config(Sample, arguments.sample)
    source = open_source(arguments.source)
    chosen = select(source.rows, filters, sample, total=source.rows.total)
    write_corpus(
        arguments.output,
        Corpus(arguments.name, chosen.prompt_ids, chosen.texts, chosen.n_tokens),
        {
            "source": arguments.source,
            "filters": asdict(filters),
            "sample": asdict(sample),
            "counts": chosen.counts,
            **source.facts,
        },
    )


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--name", required=True, help="the corpus' name in the config")
    parser.add_argument(
        "--source", type=cli.json_argument, required=True,
        help='JSON: {"hub": …}, {"file": …}, {"package": …} or {"task": …}, and further keys',
    )  # fmt: skip
    parser.add_argument(
        "--filters", type=cli.json_argument, default={},
        help="JSON: drop_headings, min_tokens, max_tokens, longer, drop_duplicates",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=cli.json_argument, default={}, help="JSON: n (null for all), seed"
    )
    parser.add_argument("--output", type=Path, required=True, help="corpus file (parquet)")
    cli.run(main, parser.parse_args())
