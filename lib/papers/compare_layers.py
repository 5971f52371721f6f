"""Compare all layers of a study's models and checkpoints on the same prompts by CKA and RSA."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Open the activations, compare, write."""
    from layerwise.activations.store import Activations
    from layerwise.io import tables
    from papers import similarity

    study = arguments.plan.studies[arguments.study]
    with ExitStack() as stack:
        paths = study.files("activations")
        files = [stack.enter_context(Activations(Path(path))) for path in paths]
        for file in files:
            script.check_activations(arguments.plan, file)
        found = similarity.table(files, study.study.tokens)
    tables.write(arguments.output, found, key=arguments.key)


if __name__ == "__main__":
    script.run(
        main,
        script.parser(
            __doc__, "study", stage="similarity", output="table of similarities to write"
        ),
    )
