"""Compare all layers of a study's models and checkpoints on the same prompts by CKA and RSA."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Open the activations, compare, write."""
    from layerwise.activations.store import Activations
    from layerwise.association import similarity
    from layerwise.io import tables
    from layerwise.run import studies

    config, study = arguments.config, arguments.study
    with ExitStack() as stack:
        paths = studies.table_paths(config, study, "activations")
        files = [stack.enter_context(Activations(Path(path))) for path in paths]
        found = similarity.table(files, config.studies[study].tokens)
    tables.write(arguments.output, found, key=arguments.key)


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, "study", output="table of similarities to write"))
