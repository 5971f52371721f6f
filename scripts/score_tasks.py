"""Score every layer on tasks, from stored embeddings: by mteb's evaluators or by own labels.

python scripts/score_tasks.py --model minilm-l6 --task LeeNewsSimilarity
"""

from __future__ import annotations

from pathlib import Path

from layerwise import cli


def main(runs: list[cli.Run]) -> None:
    """Task after task."""
    cli.each(runs, score)


def score(run: cli.Run) -> None:
    """Score every layer, and remove the embeddings."""
    from layerwise.tasks.layout import remove

    embeddings = run.input("embeddings")
    if run.job.stage == "score_labels":
        _own_labels(run, embeddings)
    else:
        _mteb(run, embeddings)
    if not False:
        remove(embeddings)


def _own_labels(run: cli.Run, embeddings: Path) -> None:
    from layerwise.tasks.labelled import score_labelled

    task = run.names["task"]
    score_labelled(
        embeddings,
        task,
        run.config.own_tasks[task],
        run.files,
        run.config.scoring_of(run.names["model"]),
        model=run.names["model"],
        revision=run.names["revision"],
        threads=run.threads,
        images=run.input("corpus") if "corpus" in run.inputs else None,
        key=run.stamp.key,
        recipe=run.stamp.recipe,
    )


def _mteb(run: cli.Run, embeddings: Path) -> None:
    from layerwise.tasks.score import score_task

    task, output = run.names["task"], run.files["scores"]
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


if __name__ == "__main__":
    cli.run_bundle("score_tasks", main, __doc__)
