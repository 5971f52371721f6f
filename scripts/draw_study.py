"""Draw one study of the config: figure, table of what is drawn, caption.

    python scripts/draw_study.py --study depth --settings '{"kind": "score_by_depth"}' \\
        --scores results/scores/*/*/*.parquet --png depth.png --pdf depth.pdf --csv depth.csv
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from layerwise.association.tables import read_tables
from layerwise.cli import json_argument, parser, run
from layerwise.figures import style
from layerwise.figures.studies import KINDS, Tables, draw
from layerwise.files import replacing

log = logging.getLogger("layerwise")

TABLES = ("metrics", "scores", "associations", "prompts")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    kinds = "\n".join(f"  {name:<26}{kind.about}" for name, kind in KINDS.items())
    made = parser(f"{__doc__}\nKinds of studies:\n{kinds}")
    made.add_argument("--study", required=True, help="its name, for messages")
    made.add_argument("--settings", type=json_argument, required=True, help="the study, as JSON")
    made.add_argument(
        "--order", type=json_argument, default=None, help="all models, as JSON; fixes colours"
    )
    for name in TABLES:
        made.add_argument(f"--{name}", type=Path, nargs="+", help=f"tidy tables of {name}")
    made.add_argument("--png", type=Path, required=True, help="figure to write, 200 dpi")
    made.add_argument("--pdf", type=Path, required=True, help="figure to write, fonts embedded")
    made.add_argument("--csv", type=Path, required=True, help="table of the numbers drawn")
    made.add_argument("--caption", type=Path, help="caption to write, reStructuredText")
    made.add_argument("--caption-json", type=Path, help="the caption's numbers to write, JSON")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Read, draw, write."""
    paths = {name: getattr(given, name) for name in TABLES}
    tables = Tables(**{name: read_tables(p, name) for name, p in paths.items() if p})
    drawn = draw(given.settings, tables, given.order)
    log.info("%s: %s", given.study, drawn.title)
    style.save(drawn.figure, given.png, given.pdf)
    with replacing(given.csv) as partial:
        drawn.table.to_csv(partial, index=False)
    if given.caption:
        with replacing(given.caption) as partial:
            partial.write_text(drawn.rst(), encoding="utf-8")
    if given.caption_json:
        facts = {"title": drawn.title, "caption": drawn.caption, "facts": drawn.facts}
        with replacing(given.caption_json) as partial:
            partial.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    run(main, arguments())
