"""Score every layer of a model on tasks of token states: multiple choice, token matching.

python scripts/score_tokens.py --model smollm2-135m --task mmlu
"""

from __future__ import annotations

import itertools

from layerwise import cli


def main(runs: list[cli.Run]) -> None:
    """Checkpoint by checkpoint: load the model, then one task after the other."""
    from layerwise.activations.extract import set_threads
    from layerwise.models.load import load

    set_threads(runs[0].threads)
    failures = cli.Failures()
    for (model, revision), group in itertools.groupby(runs, lambda run: run.job.names[:2]):
        several = list(group)
        settings = several[0].config.extraction(model)
        with failures.of(several):
            loaded = load(
                model, several[0].loadable(), revision,
                device=settings.device, dtype=settings.dtype,
            )  # fmt: skip
            for run in several:
                with failures.of([run]):
                    score(run, loaded)
    failures.tell(len(runs))


def score(run: cli.Run, loaded: object) -> None:
    """Write the scores of every layer, and their differences."""
    from layerwise.tasks.token_scores import score_tokens

    task, model = run.names["task"], run.names["model"]
    extract, scoring = run.config.extraction(model), run.config.scoring_of(model)
    score_tokens(
        loaded,
        run.loadable(),
        task,
        run.config.token_tasks[task],
        run.input("items"),
        run.files,
        tokens=extract.tokens,
        readouts=scoring.readouts,
        confidence=scoring.confidence,
        budget=extract.batch_tokens,
        sink_ratio=extract.sink_ratio,
        key=run.stamp.key,
        recipe=run.stamp.recipe,
    )


if __name__ == "__main__":
    cli.run_bundle("score_tokens", main, __doc__)
