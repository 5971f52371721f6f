"""Score every layer of a model at a checkpoint on all its tasks."""

from __future__ import annotations

from contextlib import ExitStack

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Score the tasks that are not scored yet, and write the table of all."""
    import torch

    from layerwise.run.resources import Requests
    from layerwise.tasks.evaluate import evaluate

    config, plan = arguments.config, arguments.plan
    model, revision = arguments.model, arguments.revision
    extraction, keys = config.extraction(model), plan.keys.scores(model, revision)
    torch.set_num_threads(arguments.threads)
    with ExitStack() as opened:
        evaluate(
            lambda: opened.enter_context(script.open_model(plan, model, revision, extraction)),
            {name: script.task_of(plan, name) for name in plan.tasks[model, revision]},
            extraction=extraction,
            scoring=config.scoring_of(model),
            keys=keys,
            key=arguments.key,
            output=arguments.output,
            threads=Requests(plan).scorers(arguments.threads),
        )


if __name__ == "__main__":
    script.run(
        main,
        script.parser(
            __doc__, "model", "revision", stage="evaluate", output="table of scores to write"
        ),
    )
