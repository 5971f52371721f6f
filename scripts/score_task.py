"""Score every layer of a model on a task with mteb's evaluators, from stored embeddings.

    python scripts/score_task.py --model minilm-l6 --task LeeNewsSimilarity
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Score, and write MTEB's JSON for every layer and one tidy table."""
    from layerwise.tasks.score import TaskScoring, score_task

    model, task = run.names["model"], run.names["task"]
    output = run.files["scores"]
    score_task(
        TaskScoring(
            embeddings=run.input("embeddings"),
            task=task,
            layers=output.with_suffix(""),
            folders=run.folders(task),
            settings=run.config.scoring_of(model),
        ),
        output,
        model=model,
        revision=run.names["revision"],
        threads=run.threads,
        key=run.stamp.key,
        recipe=run.stamp.recipe,
    )


if __name__ == "__main__":
    cli.run_job("score_task", main, __doc__)
