"""Score every layer of a model on tasks with mteb's evaluators, from stored embeddings.

python scripts/score_tasks.py --model minilm-l6 --task LeeNewsSimilarity
"""

from __future__ import annotations

from layerwise import cli


def main(runs: list[cli.Run]) -> None:
    """Task after task."""
    cli.each(runs, score)


def score(run: cli.Run) -> None:
    """Write MTEB's JSON for every layer and one tidy table, and remove the embeddings."""
    from layerwise.tasks.layout import remove
    from layerwise.tasks.score import score_task

    task, output = run.names["task"], run.files["scores"]
    embeddings = run.input("embeddings")
    score_task(
        embeddings,
        task,
        output,
        output.with_suffix(""),
        run.config.scoring_of(run.names["model"]),
        folders=run.folders(task),
        model=run.names["model"],
        revision=run.names["revision"],
        threads=run.threads,
        key=run.stamp.key,
        recipe=run.stamp.recipe,
    )
    if not run.config.jobs.keep_embeddings:
        remove(embeddings)


if __name__ == "__main__":
    cli.run_bundle("score_tasks", main, __doc__)
