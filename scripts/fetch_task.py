"""Fetch a task into the local caches, on a machine that reaches the hub."""

from __future__ import annotations

import json

from layerwise import cli


def main(run: cli.Run) -> None:
    """Fetch, and write down what came."""
    from layerwise import fetch
    from layerwise.files import replacing

    task = run.names["task"]
    own = run.config.token_tasks.get(task)
    fetched = fetch.fetch_task(task) if own is None else fetch.fetch_questions(own)
    with replacing(run.files["fetched"]) as partial:
        partial.write_text(json.dumps(fetched | run.stamp.facts(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    cli.run_job("fetch_task", main, __doc__)
