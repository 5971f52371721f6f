"""Markdown lists for ``docs/metrics.md``; running this file writes them into the page."""

from __future__ import annotations

import re
from pathlib import Path

from layerwise.metrics.registry import Metric, all_metrics, sections


def of_metrics() -> str:
    """All metrics as a Markdown table."""
    better = {1: "higher", -1: "lower", None: "–"}
    rows = [
        f"| [`{m.name}`](#{m.name}) | {m.axis} | {better[m.direction]} | {m.range} "
        f"| {', '.join(m.inputs)} | {m.source} |"
        for m in all_metrics().values()
    ]
    head = "| name | metric | better | range | input | source |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows])


def of_settings() -> str:
    """The metrics' own settings as a Markdown table."""
    rows = [
        f"| `{section}.{key}` | `{default}` | "
        f"{' '.join(str(model.model_fields[key].description).split())} |"
        for section, model in sections().items()
        for key, default in model().plain().items()
    ]
    return "\n".join(["| setting | default | meaning |\n|---|---|---|", *rows])


def get(name: str) -> Metric:
    """The metric of that name."""
    return all_metrics()[name]


def write(page: Path) -> None:
    """Replace both tables of a page."""
    text = page.read_text(encoding="utf-8")
    for table in (of_metrics(), of_settings()):
        head = re.escape(table.partition("\n")[0])
        text = re.sub(rf"^{head}\n(\|.*\n)*", lambda _, t=table: t + "\n", text, flags=re.M)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[2] / "docs" / "metrics.md")
