"""The lists of ``docs/adding-a-metric.md``: ``python -m layerwise.metrics.lists`` prints them."""

from __future__ import annotations

import sys

from layerwise.metrics.registry import all_metrics, sections


def of_metrics() -> str:
    """All metrics as a Markdown table, for the docs."""
    arrow = {1: "higher", -1: "lower", None: "–"}
    rows = [
        f"| `{m.name}` | {m.axis} | {arrow[m.direction]} | {m.range} | {', '.join(m.inputs)} "
        f"| {m.source} |"
        for m in all_metrics().values()
    ]
    head = "| name | what | better | range | needs | source |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows])


def of_settings() -> str:
    """The metrics' own settings as a Markdown table, for the docs."""
    rows = [
        f"| `{section}.{key}` | {default} | {made.model_fields[key].description} |"
        for section, made in sections().items()
        for key, default in made().plain().items()
    ]
    return "\n".join(["| setting | default | what |\n|---|---|---|", *rows])


if __name__ == "__main__":
    sys.stdout.write(f"{of_metrics()}\n\n{of_settings()}\n")
