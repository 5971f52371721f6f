"""Score every layer of a model at a checkpoint on all its tasks."""

from __future__ import annotations

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Score the tasks that are not scored yet and write the table."""
    from layerwise.activations.extract import set_threads
    from layerwise.models.load import load
    from layerwise.tasks.evaluate import evaluate

    config = arguments.config
    model, revision = arguments.model, arguments.revision
    extraction, entry = config.extraction(model), script.loadable(config, model, revision)
    keys = arguments.plan.keys.scores(model, revision)
    set_threads(arguments.threads)
    evaluate(
        lambda: load(model, entry, revision, device=extraction.device, dtype=extraction.dtype),
        {name: script.task_of(arguments.plan, name) for name in keys},
        extraction=extraction,
        scoring=config.scoring_of(model),
        keys=keys,
        key=arguments.key,
        output=arguments.output,
        threads=min(arguments.threads, config.scoring.threads),
    )


if __name__ == "__main__":
    options = script.parser(
        __doc__, "model", "revision", stage="evaluate", output="table of scores to write"
    )
    script.run(main, options)
