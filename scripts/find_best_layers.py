"""Find the best layer of each model, for the first page of the report."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the scores, find, write."""
    from layerwise.figures.report import first_table
    from layerwise.io import tables
    from layerwise.names import Order
    from layerwise.run.results import Results

    config, plan = arguments.config, arguments.plan
    results, files = Results.of(plan), plan.score_files
    found = first_table(
        results.read(files, "scores"),
        Order.of(config),
        config.association.seed,
    )
    tables.write_csv(arguments.output, found, arguments.key)


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, stage="best_layers", output="CSV table to write"))
