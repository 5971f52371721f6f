"""Compare all layers of a study's models and checkpoints on the same prompts by CKA and RSA."""

from contextlib import ExitStack
from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Open the activations, compare, write."""
    from layerwise.activations.store import Activations
    from layerwise.io import tables
    from papers import similarity

    with ExitStack() as stack:
        files = [stack.enter_context(Activations(path)) for path in job.files("activations")]
        rows = similarity.table(files, job.config.studies[job.names["study"]].tokens)
    tables.write(Path(job.output[0]), rows, key=job.key)


if __name__ == "__main__":
    script.run(main, snakemake)  # type: ignore[name-defined]
