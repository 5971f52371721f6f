"""Draw one study of the config: figure, table and caption."""

from __future__ import annotations

import json

from layerwise.io.files import versions
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the tables, draw, write."""
    import matplotlib as mpl

    from layerwise.figures.render import draw
    from layerwise.run.results import Results

    mpl.use("Agg")
    study, results = arguments.plan.studies[arguments.study], Results.of(arguments.plan)
    tables = {table: results.of_study(study, table) for table in study.needs}
    order = results.order() if "selections" in tables else None
    drawn = draw(study.study, tables, order, config=arguments.config)
    files = (arguments.png, arguments.pdf, arguments.table, arguments.caption)
    drawn.write(*files, {"key": arguments.key, "versions": json.dumps(versions())})


if __name__ == "__main__":
    files = {
        "png": "PNG to write",
        "pdf": "PDF to write",
        "caption": "caption to write",
        "table": "CSV table to write",
    }
    script.run(main, script.parser(__doc__, "study", stage="figure", **files))
