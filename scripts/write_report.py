"""Write the report: one page with the best layer of each model, and all figures with captions."""

from __future__ import annotations

from layerwise.io.files import replacing
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Collect the figures and tables, write the page."""
    from layerwise.run.report import render

    page = render(arguments.plan, arguments.key)
    with replacing(arguments.output) as partial:
        partial.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, stage="report", output="HTML page to write"))
