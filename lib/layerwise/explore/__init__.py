"""The explorer: one page that draws any metric and score of a run, and needs nothing else.

`gather` makes tables of curves from the run's tables; `page` packs them and puts them into
``page.html`` with its style and script. What the browser shows is in ``page.js`` alone.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATE, STYLE, SCRIPT = (
    Path(__file__).with_name(f"page.{kind}") for kind in ("html", "css", "js")
)
PARTS = (TEMPLATE, STYLE, SCRIPT)
