"""Compare all layers of a study's models and checkpoints on the same prompts by CKA and RSA."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Open the activations, compare, write."""
    from layerwise.activations.store import Activations
    from layerwise.association import similarity
    from layerwise.io import tables
    from layerwise.workflow import studies

    config, study = script.config_of(arguments), arguments.study
    (corpus,) = studies.corpora(config, study)
    with ExitStack() as stack:
        files = [
            stack.enter_context(
                Activations(Path(studies.activations_path(config, *point, corpus)))
            )
            for point in studies.points(config, study)
        ]
        found = similarity.table(files, config.studies[study].tokens)
    tables.write(arguments.output, found, key=arguments.key)


if __name__ == "__main__":
    script.run(
        main,
        script.files(script.parser(__doc__, "study"), output="table of similarities to write"),
    )
