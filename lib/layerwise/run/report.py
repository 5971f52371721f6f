"""The report of a run: one HTML page, without other files, of its tables and figures."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.association.curves import TEXT_SOURCE, with_text_sources
from layerwise.association.scores import best_layers, with_representation
from layerwise.config.tasks import LabelledEntry
from layerwise.corpora.sources import read_rows
from layerwise.figures import panels
from layerwise.figures.select import representation_label, title_of
from layerwise.io import tables
from layerwise.names import Order, encode, in_order
from layerwise.run.plan import Plan
from layerwise.run.snakemake import HTML_KEY
from layerwise.stats import FEWEST, task_clusters
from layerwise.vocabulary import TOKENS

HEAD = "What each layer represents"
# As in CITATION.cff.
BIBTEX = """@software{{layerwise, author = {{{{The layerwise authors}}}}, title = {{layerwise}},
  version = {{{version}}}, year = {{{year}}}}}
@inproceedings{{skean2025layer, booktitle = {{ICML}}, year = {{2025}},
  title = {{Layer by Layer: Uncovering Hidden Representations in Language Models}},
  author = {{Skean, Oscar and Arefin, Md Rifat and Zhao, Dan and Patel, Niket and
    Naghiyev, Jalal and LeCun, Yann and Shwartz-Ziv, Ravid}},
  url = {{https://arxiv.org/abs/2502.02013}}}}"""
CLUSTER = "Cluster (tasks made of the same texts)"
# Of the texts of the smaller task: fewer in common are a coincidence.
SHARED = 0.1
# Wider pictures scroll in their box on a phone, so that their type stays readable.
PHONE = 600
# The picture is in the page already, so its link takes it from there.
FROM_PICTURE = "this.href = this.closest('figure').querySelector('img').src"


def render(plan: Plan, key: str) -> str:
    """The report as HTML.

    Parameters
    ----------
    plan : Plan
        Its figures, captions and tables must be in the results folder.
    key : str
        Stored in the page's head.
    """
    results = Path(plan.config.results)
    style = files("layerwise.data").joinpath("report.css").read_text(encoding="utf-8")
    parts = [(name, body) for name, body in _parts(plan, results) if body]
    figures = [_figure(plan, results, study) for study in plan.studies]
    names = [*(name for name, _ in parts), *(name for name, _ in figures)]
    name = results.name if results.name != "results" else results.resolve().parent.name
    title = f"{name}: {HEAD[0].lower()}{HEAD[1:]}" if name else HEAD
    links = "".join(
        f'<li><a href="#part{place}">{escape(entry)}</a></li>' for place, entry in enumerate(names)
    )
    sections = "".join(
        f'<h2 id="part{place}">{escape(heading)}</h2>{body}'
        for place, (heading, body) in enumerate(parts)
    )
    pictures = "".join(
        f'<figure id="part{place}">{body}</figure>'
        for place, (_, body) in enumerate(figures, len(parts))
    )
    bibtex = BIBTEX.format(year=date.today().year, version=version("layerwise"))
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{HTML_KEY.format(key=escape(key))}
<title>{escape(title)}</title><style>{style}</style></head><body>
<h1>{escape(title)}</h1>
<p>{date.today():%-d %B %Y}, layerwise {version("layerwise")}.{_seconds(results)}</p>
<p>This page needs no other file.</p>
<nav aria-label="Contents"><ul>{links}</ul></nav>
{sections}<h2>Figures</h2>{pictures}
<footer><h2>To cite</h2><pre>{escape(bibtex)}</pre></footer>
</body></html>
"""


def _parts(plan: Plan, results: Path) -> Iterable[tuple[str, str]]:
    """The sections before the figures: title and body, empty where there is nothing to show."""
    best = results / "report" / "best_layers.csv"
    if plan.scored:
        table = tables.read_any(best)
        rows = shown(table)
        latex, markdown = as_latex(rows), as_markdown(rows)
        links = (
            _link("LaTeX", "best_layers.tex", latex.encode(), "text/plain"),
            _link("Markdown", "best_layers.md", markdown.encode(), "text/plain"),
        )
        note = f'{NOTE} <span class="downloads">{", ".join(links)}</span>'
        yield "Best layer of each model", f'{_table(rows)}<p class="note">{note}</p>'
    yield "Models", _table(_models(plan))
    yield "Corpora", _table(_corpora(plan))
    tasks = _tasks(plan)
    yield "Tasks", _table(tasks) + _shared_texts(plan, tasks)
    weights = results / "report" / "weights.csv"
    if plan.swept:
        same = tables.read_any(weights).dropna(subset=["same_as"])
        yield "Checkpoints with equal weights", _table(same)


def _link(words: str, file: str, content: bytes, kind: str) -> str:
    """A link that holds the file itself."""
    href = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return f'<a download="{escape(file, quote=True)}" href="{href}">{words}</a>'


def _seconds(results: Path) -> str:
    """The time of all jobs, from Snakemake's benchmarks; empty without one."""
    files = sorted((results / "benchmarks").rglob("*.tsv"))
    seconds = sum(float(pd.read_csv(file, sep="\t")["s"].sum()) for file in files)
    return f" Jobs that run models took {seconds:,.0f} seconds." if seconds else ""


def _models(plan: Plan) -> pd.DataFrame:
    """Each model that is read, with its source, checkpoints, weights and precision."""
    rows = []
    for model, names in plan.revisions_read.items():
        facts = tables.facts(Path(plan.facts_tables[model, names[-1]]))
        rows.append(
            {
                "Model": model,
                "Source": _source(plan, model),
                "Checkpoints": _range(names),
                "Last weights (SHA-256)": facts.get("weights_sha256", "")[:12],
                "Precision": facts.get("dtype", ""),
            }
        )
    return pd.DataFrame(rows)


def _range(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)}: {names[0]} to {names[-1]}"


def _source(plan: Plan, model: str) -> str:
    source = plan.config.models[model].source
    names = [
        getattr(source, part, None) for part in ("hub", "folder", "package", "states", "gguf_file")
    ]
    return ", ".join(filter(None, names))


def _corpora(plan: Plan) -> pd.DataFrame:
    """Each corpus that is read, with its number of prompts."""
    texts = {corpus: Path(plan.path("texts", corpus=corpus)) for corpus in plan.corpora_read}
    rows = [(corpus, tables.facts(path).get("n", "")) for corpus, path in texts.items()]
    return pd.DataFrame(rows, columns=["Corpus", "Prompts"])


def _tasks(plan: Plan) -> pd.DataFrame:
    """Each task that is scored, with its type and cluster."""
    if not plan.score_files:
        return pd.DataFrame()
    scores = pd.concat([tables.read(Path(path), "scores") for path in plan.score_files])
    found = scores[["task", "task_type"]].drop_duplicates()
    found = with_text_sources(found, plan.config.association.text_sources)
    return found.rename(columns={"task": "Task", "task_type": "Type", TEXT_SOURCE: CLUSTER})


def _shared_texts(plan: Plan, tasks: pd.DataFrame) -> str:
    """A warning of labelled files that share texts and are of different clusters, if there are."""
    texts: dict[str, set[str]] = {}
    clusters = dict(tasks[["Task", CLUSTER]].to_numpy()) if len(tasks) else {}
    for task in clusters:
        entry = plan.config.tasks.get(task)
        if not isinstance(entry, LabelledEntry) or entry.kind == "tags":
            continue
        if entry.file and Path(entry.file).is_file():
            texts[task] = set(read_rows(Path(entry.file))[[*entry.text_columns]].to_numpy().flat)
    pairs = [
        f"{one} and {other}"
        for one, other in itertools.combinations(texts, 2)
        if clusters[one] != clusters[other]
        and len(texts[one] & texts[other]) > SHARED * min(len(texts[one]), len(texts[other]))
    ]
    if not pairs:
        return ""
    warning = (
        f"These tasks share texts but count as independent: {', '.join(pairs)}. Intervals over "
        "tasks are then too narrow: give them one name under association.text_sources."
    )
    return f"<p><strong>{escape(warning)}</strong></p>"


def _table(shown: pd.DataFrame) -> str:
    """A table in which each cell knows its column, for narrow screens; empty without rows."""
    if shown.empty:
        return ""
    columns = [escape(str(column), quote=True) for column in shown]
    head = "".join(f"<th>{column}</th>" for column in columns)
    rows = "".join(f"<tr>{_cells(columns, row)}</tr>" for row in shown.itertuples(index=False))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(columns: Sequence[str], row: Iterable[Any]) -> str:
    cells = zip(columns, row, strict=True)
    return "".join(f'<td data-label="{c}">{escape(str(value))}</td>' for c, value in cells)


def _figure(plan: Plan, results: Path, study: str) -> tuple[str, str]:
    """The title of a figure, and its picture with caption and files to download."""
    name = encode(study)
    title = title_of(plan.studies[study].study) or study
    png = (results / "figures" / f"{name}.png").read_bytes()
    width = int.from_bytes(png[16:20], "big") * 96 // panels.DPI  # so that type has one size
    is_wide = width > PHONE
    rst = (results / "figures" / f"{name}.rst").read_text(encoding="utf-8")
    caption = escape(re.sub(r"\\(.)", r"\1", re.sub(r"\A\*\*.*\*\*\n", "", rst)).strip())
    file = escape(study, quote=True)
    links = [f'<a download="{file}.png" href="#" onclick="{FROM_PICTURE}">PNG</a>']
    for words, path, kind in (
        ("PDF", results / "figures" / f"{name}.pdf", "application/pdf"),
        ("CSV", results / "tables" / f"{name}.csv", "text/csv"),
    ):
        if path.is_file():
            links.append(_link(words, study + path.suffix, path.read_bytes(), kind))
    alt = escape(f"{title}. {caption.split('. ')[0]}.", quote=True)
    return title, (
        f'<h3 class="hidden">{escape(title)}</h3>'
        f'<div class="picture"{" tabindex=0" * is_wide}><img alt="{alt}" width="{width}" '
        f"{'class=wide ' * is_wide}"
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}"></div>'
        f'<figcaption>{caption} <span class="downloads">{", ".join(links)}</span></figcaption>'
    )


SHOWN_COLUMNS = (
    *("Model", "Token selection", "Best layer", "Score", "Output's score"),
    *("Difference (95% CI)", "Compute saved"),
)
COLUMNS = ["model", "revision", "representation", "best_layer", "last_layer", "score"]
COLUMNS += ["output_score", "difference", "low", "high", "n_tasks", "n_clusters"]
COLUMNS += ["compute_saved"]
NOTE = (
    "Scores are means (× 100) over tasks. The output is the last layer after the model's last "
    "norm. The difference is the best layer's lead over the output in points; its 95% CI over "
    "task clusters (tasks of the same texts count as one) corrects for selecting the best of all "
    f"layers and takes {FEWEST} clusters. Compute saved is the share of the model's blocks after "
    "the best layer, which an exported model does without."
)


def first_table(scores: pd.DataFrame, order: Order | None = None) -> pd.DataFrame:
    """Best layer of each model, checkpoint and representation, over all tasks.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    order : Order, optional
        Order of models and checkpoints.

    Returns
    -------
    DataFrame
        model, revision, representation, best_layer (``output``, a layer or ``3 layers tie``),
        last_layer, score, output_score, difference, low, high (scores in [0, 1]; null without an
        interval), n_tasks, n_clusters, compute_saved (share of the model's blocks after the best
        layer, 0 to 1; all blocks count the same, the embedding nothing).
    """
    order = order or Order()
    best = best_layers(scores)
    best = best[best["task_type"] == "all"].copy()
    best["compute_saved"] = 1 - best["best_layer"] / best["last_layer"].clip(lower=1)
    best["best_layer"] = [_best(row) for row in best.to_dict("records")]
    keys = ["model", "revision", "representation"]
    best = with_representation(best).drop_duplicates(keys)
    representations = in_order(best["representation"].unique(), list(TOKENS))
    revisions = best.groupby("model")["revision"].unique()
    rows = [
        (model, revision, name)
        for model in in_order(best["model"].unique(), order.models)
        for name in representations
        for revision in order.checkpoints(model, revisions[model])
    ]
    best = best.set_index(keys, drop=False)
    names = {"best_score": "score", "gain": "difference", "n_sources": "n_clusters"}
    names |= {"gain_low": "low", "gain_high": "high"}
    best = best.loc[[row for row in rows if row in best.index]].reset_index(drop=True)
    return best.rename(columns=names)[COLUMNS]


def _best(row: Mapping[Any, Any]) -> str:
    if row["n_tied"] > 1:
        return f"{row['n_tied']} layers tie"
    return "output" if row["best_is_output"] else str(row["best_layer"])


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The first table as people read it, in `SHOWN_COLUMNS`; scores times 100."""
    rows = []
    for row in table.astype({"best_layer": str}).to_dict("records"):
        revision, best = row["revision"], row["best_layer"]
        rows.append(
            (
                row["model"] if revision == "main" else f"{row['model']} ({revision})",
                representation_label(row["representation"]),
                _of_all(best, row["last_layer"]),
                _points(row["score"]),
                _points(row["output_score"]),
                _difference(row),
                f"{row['compute_saved']:.0%}",
            )
        )
    return pd.DataFrame(rows, columns=list(SHOWN_COLUMNS))


def as_markdown(shown: pd.DataFrame) -> str:
    """A table in Markdown."""
    rows = [shown.columns, ["---"] * len(shown.columns), *shown.to_numpy()]
    return "".join(
        f"| {' | '.join(str(c).replace('|', '&#124;') for c in row)} |\n" for row in rows
    )


def as_latex(shown: pd.DataFrame) -> str:
    """A table in LaTeX, for the package booktabs."""
    text = shown.to_latex(index=False, escape=True)
    return text.replace("−", "$-$").replace("×", r"$\times$")


def _of_all(best: str, last: int) -> str:
    """A layer, of how many."""
    return f"{best} of {last}" if best.isdigit() else best


def _difference(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["difference"]) or row["best_layer"] == "output":
        return "–"
    interval = f"{_points(row['low'])} to {_points(row['high'])}"
    if pd.isna(row["low"]):
        interval = f"no CI: {task_clusters(row['n_clusters'])}"
    return f"{_points(row['difference'])} ({interval})"


def _points(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.1f}".replace("-", "−")
