"""Fetch a model, a corpus or a task into the local caches, on a machine that reaches the hub."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Fetch, and write down what came."""
    from layerwise import fetch
    from layerwise.files import replacing

    if arguments.model:
        fetched = fetch.fetch_model(arguments.model, arguments.revision)
    elif arguments.corpus:
        fetched = fetch.fetch_corpus(arguments.corpus)
    else:
        fetched = fetch.fetch_task(arguments.task)
    with replacing(arguments.output) as partial:
        partial.write_text(json.dumps(fetched, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--model", type=cli.json_argument,
        help='a model\'s config entry as JSON: {"source": {"hub": "EleutherAI/pythia-14m"}}',
    )  # fmt: skip
    what.add_argument(
        "--corpus", type=cli.json_argument, help='a corpus\' source as JSON: {"hub": …}'
    )
    what.add_argument("--task", help="name of an MTEB task")
    parser.add_argument("--revision", default="main", help="the model's revision")
    parser.add_argument("--output", type=Path, required=True, help="what was fetched (json)")
    cli.run(main, parser.parse_args())
