"""Score every layer of a model at a checkpoint on all its tasks."""

from contextlib import ExitStack
from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Score the tasks that are not scored yet, and write the table of all."""
    import torch

    from layerwise.run.resources import Requests
    from layerwise.tasks.evaluate import evaluate

    plan, model, revision = job.plan, job.names["model"], job.names["revision"]
    extraction = job.config.extraction(model)
    torch.set_num_threads(job.threads)
    with ExitStack() as opened:
        evaluate(
            lambda: opened.enter_context(script.open_model(plan, model, revision, extraction)),
            {name: script.task_of(plan, name) for name in plan.tasks[model, revision]},
            extraction=extraction,
            scoring=job.config.scoring_of(model),
            keys=plan.score_keys(model, revision),
            key=job.key,
            output=Path(job.output[0]),
            threads=Requests(plan).scorers(job.threads),
        )


if __name__ == "__main__":
    script.run(main, snakemake)
