"""Score every layer of a model at a checkpoint on a part of its tasks."""

from __future__ import annotations

import evaluate_model
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Score the part's tasks that are not scored yet and write their table."""
    from layerwise.run.resources import Requests

    model, revision = arguments.model, arguments.revision
    tasks = Requests(arguments.plan).parts(model, revision)[int(arguments.part)]
    evaluate_model.score(arguments, tasks, arguments.output.parents[1])


if __name__ == "__main__":
    options = script.parser(
        __doc__, "model", "revision", "part", stage="evaluate_part", output="table to write"
    )
    script.run(main, options)
