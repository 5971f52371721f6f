"""Verify tiny random models of every family of the tests, and write docs/models.md.

`python docs/verified.py` verifies all, `python docs/verified.py llama bert` some. Real models are
added by `layerwise verify MODEL --table docs/verified.csv`; then run this without families
(`python docs/verified.py none`) for the page.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from helpers import tiny, tiny_audio, tiny_images  # noqa: E402

from tools import verify  # noqa: E402

TABLE, PAGE = DOCS / "verified.csv", DOCS / "models.md"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
# Where each family is saved by.
SAVES = {
    **dict.fromkeys((*tiny.FAMILIES, *tiny.OTHER), tiny.save),
    **dict.fromkeys(tiny_images.FAMILIES, tiny_images.save),
    **dict.fromkeys(tiny_audio.FAMILIES, tiny_audio.save),
}
SHOWN = {
    "model": "model",
    "architecture": "architecture",
    "layers": "layers",
    "readout": "readout",
    "hidden_states": "layers equal to `hidden_states`",
    "batches": "batches",
    "sublayers": "sublayers",
}
REFUSED = {"model": "model", "refused": "refused because"}


def main() -> None:
    """Verify families, and write the page."""
    for family in SAVES if len(sys.argv) == 1 else [f for f in sys.argv[1:] if f in SAVES]:
        with tempfile.TemporaryDirectory() as folder:
            saved = SAVES[family](family, Path(folder) / family)
            row = verify.verify(saved, name=family, weights="random")
        verify.record(TABLE, [row])
        sys.stderr.write(f"{family}: {row.get('hidden_states') or row['refused']}\n")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{rendered()}{END}{rest.partition(END)[2]}", encoding="utf-8")


def rendered() -> str:
    """The table as the page has it."""
    table = pd.read_csv(TABLE, dtype=str).fillna("")
    parts = []
    for weights, title in (("real", "Real weights"), ("random", "Tiny random weights")):
        rows = table[table["weights"] == weights]
        readable, refused = rows[rows["refused"] == ""], rows[rows["refused"] != ""]
        if len(readable):
            parts.append(f"## {title}\n\n{_markdown(readable, SHOWN)}")
        if len(refused):
            parts.append(f"## {title}, refused\n\n{_markdown(refused, REFUSED)}")
    return "\n".join(parts)


def _markdown(rows: pd.DataFrame, columns: dict[str, str]) -> str:
    """Rows as a table of Markdown."""
    lines = [list(columns.values()), ["---"] * len(columns)]
    lines += rows[list(columns)].to_numpy().tolist()
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    main()
