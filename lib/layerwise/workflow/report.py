"""The report of a run: one HTML page, without other files, of its tables and figures."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path

from layerwise.config import Config
from layerwise.figures import report as first_page
from layerwise.io import delimited
from layerwise.names import encode
from layerwise.run.stale import HTML_KEY

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; }
tr { border-bottom: 1px solid #ddd; } td { font-variant-numeric: tabular-nums; }
figure { margin: 2rem 0; } img { max-width: 100%; } figcaption { color: #444; }
"""


def render(config: Config, key: str) -> str:
    """The report as HTML.

    Parameters
    ----------
    config : Config
        Its figures, captions and tables must be in the results folder.
    key : str
        Stored in the page's head.
    """
    results = Path(config.results)
    sections = []
    best = results / "report" / "best_layers.csv"
    if best.is_file():
        sections.append(f"<h2>Best layer of each model</h2>{_table(best)}")
    weights = results / "report" / "weights.csv"
    if weights.is_file():
        same = delimited.read(weights, dtype=str).dropna(subset=["same_as"])
        if len(same):
            shown = same.to_html(index=False, border=0)
            sections.append(f"<h2>Checkpoints with equal weights</h2>{shown}")
    sections += [_figure(results, study) for study in config.studies]
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
{HTML_KEY.format(key=escape(key))}
<title>What each layer represents</title><style>{STYLE}</style></head><body>
<h1>What each layer represents</h1>
<p>Any metric and score by layer and checkpoint: <a href="explore.html">explorer</a>.</p>
{"".join(sections)}
</body></html>
"""


def _table(path: Path) -> str:
    shown: str = first_page.shown(delimited.read(path)).to_html(index=False, border=0)
    return f"{shown}<p>{first_page.NOTE}</p>"


def _figure(results: Path, study: str) -> str:
    name = encode(study)
    image = base64.b64encode((results / "figures" / f"{name}.png").read_bytes()).decode()
    caption = (results / "figures" / f"{name}.rst").read_text(encoding="utf-8")
    text = escape(re.sub(r"\\(.)", r"\1", caption))
    return (
        f"<h2>{escape(study)}</h2>"
        f'<figure><img alt="{escape(study, quote=True)}" src="data:image/png;base64,{image}">'
        f'<figcaption>{text} <a href="tables/{escape(name, quote=True)}.csv">Table</a>, '
        f'<a href="figures/{escape(name, quote=True)}.pdf">PDF</a></figcaption></figure>'
    )
