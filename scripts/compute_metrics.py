"""Compute all metrics of all layers from a file of activations. Needs no GPU and no model."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Open the activations, compute, write the tables."""
    from layerwise.activations.store import Activations
    from layerwise.io import tables
    from layerwise.metrics import sequence, table

    settings = arguments.config.metrics
    about = {name: getattr(arguments, name) for name in ("model", "revision", "corpus")}
    with Activations(arguments.activations, **about) as activations:
        script.check_activations(arguments.plan, activations)
        metrics, prompts = table.compute(activations, settings, arguments.threads)
        positions = sequence.compute(activations, settings)
        facts = {
            name: str(value)
            for name, value in activations.attributes.items()
            if name.endswith("sha256") or name in (*about, "dtype", "readout")
        }
        facts["input"] = str(activations.attributes["key"])
    tables.write(arguments.prompts, prompts, key=arguments.key, **facts)
    tables.write(arguments.positions, positions, key=arguments.key, **facts)
    tables.write(arguments.metrics, metrics, key=arguments.key, **facts)


if __name__ == "__main__":
    files = {
        "activations": "HDF5 file to read",
        "metrics": "table of metrics to write",
        "prompts": "table of single prompts to write",
        "positions": "table along the sequence to write",
    }
    script.run(
        main, script.parser(__doc__, "model", "revision", "corpus", stage="metrics", **files)
    )
