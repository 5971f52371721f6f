"""Write the calibration table into docs/statistics.md.

python tests/calibration/document.py docs/calibration.csv docs/statistics.md
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

START, END = "<!-- calibration -->\n", "<!-- end -->"


def lines(path: Path) -> list[str]:
    """Markdown: a row a check, the mean over all cells, and the least and greatest by size."""
    hits: dict[tuple[str, str, str], float] = defaultdict(float)
    draws: dict[tuple[str, str, str], int] = defaultdict(int)
    wanted: dict[str, str] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            wanted[row["check"]] = row["wanted"]
            for side in ("before", "after"):
                if row[side]:
                    key = row["check"], side, f"{row['n']} x {row['layers']}"
                    draws[key] += int(row[f"{side}_repeats"])
                    hits[key] += float(row[side]) * int(row[f"{side}_repeats"])
    made = ["| what | should be | before | after | draws |", "|---|---|---|---|---|"]
    for check, target in wanted.items():
        cells = [_cell(check, side, hits, draws) for side in ("before", "after")]
        total = max(
            sum(n for k, n in draws.items() if k[:2] == (check, side))
            for side in ("before", "after")
        )
        made.append(f"| {check} | {target or 'high'} | {cells[0]} | {cells[1]} | {total:,} |")
    return made


def _cell(check, side, hits, draws) -> str:  # type: ignore[no-untyped-def]
    sizes = [k for k in draws if k[:2] == (check, side)]
    if not sizes:
        return "none"
    share = sum(hits[k] for k in sizes) / sum(draws[k] for k in sizes)
    each = [hits[k] / draws[k] for k in sizes]
    text = f"{share:.3f}"
    return f"{text} ({min(each):.2f} to {max(each):.2f})" if len(each) > 1 else text


def filled(page: str, table: Path) -> str:
    """The page with the table in its place."""
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    text = START + "\n".join(lines(table)) + "\n" + END
    return pattern.sub(lambda _: text, page, count=1)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(filled(target.read_text(encoding="utf-8"), source), encoding="utf-8")
