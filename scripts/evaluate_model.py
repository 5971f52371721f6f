"""Score every layer of a model at a checkpoint on all its tasks.

With `scoring.parts`, other jobs have scored them, and their tables are joined without the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Score the tasks that are not scored yet, or join the tables of parts."""
    from layerwise.tasks.results import join_tables

    tasks = arguments.plan.tasks[arguments.model, arguments.revision]
    if arguments.parts:
        join_tables(arguments.parts, tasks, key=arguments.key, output=arguments.output)
    else:
        score(arguments, tasks)


def score(arguments: script.Arguments, tasks: Iterable[str], folder: Path | None = None) -> None:
    """Score some tasks; parameters as of `layerwise.tasks.evaluate.evaluate`."""
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
            {name: script.task_of(plan, name) for name in tasks},
            extraction=extraction,
            scoring=config.scoring_of(model),
            keys=keys,
            key=arguments.key,
            output=arguments.output,
            folder=folder,
            threads=Requests(plan).scorers(arguments.threads),
        )


if __name__ == "__main__":
    options = script.parser(
        __doc__, "model", "revision", stage="evaluate", output="table of scores to write"
    )
    about = "tables of the jobs that share the tasks, to join"
    options.add_argument("--parts", type=Path, nargs="*", default=[], help=about)
    script.run(main, options)
