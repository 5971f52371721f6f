"""Compare all layers of a study's models and checkpoints: CKA and RSA on the same prompts."""

from __future__ import annotations

from contextlib import ExitStack

from layerwise import cli


def main(run: cli.Run) -> None:
    """Open the activations, compare, write."""
    from layerwise import similarity, tables
    from layerwise.activations.store import Activations

    tokens = run.config.studies[run.names["study"]].tokens
    with ExitStack() as stack:
        files = [stack.enter_context(Activations(path)) for path in run.inputs["activations"]]
        found = similarity.table(files, tokens)
    tables.write(run.files["similarities"], found, key=run.stamp.key, recipe=run.stamp.recipe)
    run.release_activations()


if __name__ == "__main__":
    cli.run_job("compare_layers", main, __doc__)
