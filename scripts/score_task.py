"""Score every layer of a model on a task with mteb's evaluators, from stored embeddings.

python scripts/score_task.py --model minilm-l6 --task LeeNewsSimilarity
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Score, and write MTEB's JSON for every layer and one tidy table."""
    from layerwise.tasks.score import score_task

    task, output = run.names["task"], run.files["scores"]
    score_task(
        run.input("embeddings"),
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


if __name__ == "__main__":
    cli.run_job("score_task", main, __doc__)
