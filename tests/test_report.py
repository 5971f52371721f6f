"""The report: what its page says, and that it fits a phone."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.association_tables import tidy_scores
from helpers.browser import NEEDS_CHROMIUM, asked
from PIL import Image

from layerwise.config import Config
from layerwise.corpora.prompts import write_corpus
from layerwise.figures.render import draw
from layerwise.io import tables
from layerwise.names import Order, encode
from layerwise.run.plan import Plan
from layerwise.run.report import SHOWN_COLUMNS, as_latex, as_markdown, first_table, render, shown

STUDY = "scores of b"
TITLE = "The &quot;law&quot; &lt;b&gt;"
VALUES = np.array([[0.3, 0.5, 0.4], [0.5, 0.8, 0.5], [0.2, 0.5, 0.3]])


def plan_of(folder: Path, **given: object) -> Plan:
    """Of a run of one study, whose name has a space."""
    models = {"b": {"source": {"hub": "x/b"}}}
    studies = {STUDY: {"kind": "score_by_depth"}}
    return Plan(Config.of({"results": str(folder), "models": models, "studies": studies, **given}))


def page_of(plan: Plan, scores: pd.DataFrame) -> str:
    """The report of a run that has these scores."""
    tables.write(Path(plan.score_files[0]), scores, weights_sha256="0f" * 32, dtype="bfloat16")
    drawn = draw(plan.studies[STUDY].study, {"scores": scores}, config=plan.config)
    folder = Path(plan.config.results)
    base = folder / "figures" / encode(STUDY)
    table = folder / "tables" / f"{base.name}.csv"
    png, pdf, rst = (base.with_suffix(end) for end in (".png", ".pdf", ".rst"))
    drawn.write(png, pdf, table, rst, metadata={})
    (folder / "report").mkdir(exist_ok=True)
    first_table(scores).to_csv(folder / "report" / "best_layers.csv", index=False)
    return render(plan, "k")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    sources = {"text_sources": {"task0": "journals of mine"}}
    tasks = ["STS12", "STS13", "BIOSSES"]
    plan = plan_of(tmp_path_factory.mktemp("results"), tasks=tasks, association=sources)
    return page_of(plan, tidy_scores(VALUES, model="b"))


def test_tasks_of_the_same_texts_in_different_clusters_are_named(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(20)]
    tasks = {}
    for name, first in {"mood": 0, "topic": 0, "other": 19}.items():
        # A tenth of the smaller task counts, whatever the size of the larger.
        own = [f"{name} {n}" for n in range(300 if name == "topic" else first)]
        rows = pd.DataFrame({"text": [*texts[first:], *own], "label": "a"})
        file = tmp_path / f"{name}.csv"
        rows.to_csv(file, index=False)
        tasks[name] = {"file": str(file), "kind": "classification"}
    scores = tidy_scores(np.full((3, 3), 0.5), model="b")
    scores["task"] = np.repeat([*tasks], 3)
    page = page_of(plan_of(tmp_path, tasks=tasks), scores)
    assert "count as independent: mood and topic." in page
    joined = {"text_sources": {"mood": "mine", "topic": "mine"}}
    assert "independent" not in page_of(plan_of(tmp_path, tasks=tasks, association=joined), scores)


def test_the_page_says_what_was_run_and_names_each_figure_once(page: str) -> None:
    text = unescape(re.sub(r"<[^>]*>", " ", page))
    for words in ("0f0f0f0f0f0f", "bfloat16", "x/b", "layerwise 0.1.0", "Best layer", "Contents"):
        assert words in page
    assert "journals of mine" in page, "the cluster that the config gives a task"
    assert "**" not in text and "`" not in text
    assert len(re.findall(r"<h3[^>]*>Mean task score by depth</h3>", page)) == 1
    downloads = re.findall(r'download="([^"]*)" href="([^"]{1,4})', page)
    files = ["best_layers.tex", "best_layers.md"]
    files += [f"{STUDY}.{kind}" for kind in ("png", "pdf", "csv")]
    assert [name for name, _ in downloads] == files
    assert {href for name, href in downloads if not name.endswith(".png")} == {"data"}
    # Nothing in it leads to another file, so that it can be sent.
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:")) for link in links)


def test_the_tables_of_the_page_by_hand(tmp_path: Path) -> None:
    """Sources, checkpoints and weights of models, prompts of corpora, tasks, equal weights."""
    steps = ["step1", "step2", "step4"]
    given = {
        "results": str(tmp_path),
        "models": {
            "a b, c": {"source": {"hub": "x/a", "gguf_file": "a.gguf"}, "revisions": steps},
            "d": {"source": {"folder": "models/d"}},
            "unread": {"source": {"hub": "x/unread"}},
        },
        "corpora": {"c": {"source": {"file": "c.txt"}}, "e": {"source": {"file": "e.txt"}}},
        "metrics": {"metrics": ["prompt_entropy"]},
        "studies": {
            "s": {
                "kind": "metrics_by_depth",
                "models": ["a b, c", "d"],
                "corpora": ["c"],
                "revisions": "all",
                "title": 'The "law" <b>',
            }
        },
    }
    plan = Plan(Config.of(given))
    for number, ((model, revision), path) in enumerate(plan.facts_tables.items()):
        about = {"model": model, "revision": revision, "dtype": f"float{number}"}
        rows = pd.DataFrame({"model": [model]})
        tables.write(Path(path), rows, weights_sha256=f"{number}" * 64, **about)
    prompts = pd.DataFrame({"prompt_id": ["0", "1", "2"], "text": "a text", "n_tokens": 2})
    write_corpus(Path(plan.path("texts", corpus="c")), "c", prompts)
    weights = pd.DataFrame({"model": "m", "revision": steps, "same_as": ["step2", "step1", ""]})
    (tmp_path / "report").mkdir()
    weights.to_csv(tmp_path / "report" / "weights.csv", index=False)
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (1600, 900)).save(tmp_path / "figures" / "s.png")
    (tmp_path / "figures" / "s.rst").write_text("**Title**\n\nFirst \\*sentence. Second.\n")
    for number, seconds in enumerate((1000.4, 234.0)):
        path = tmp_path / "benchmarks" / "extract" / f"{number}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\tmax_rss\n{seconds}\t5\n")
    page = render(plan, 'key "1"')
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", page)
    sections = ["Models", "Corpora", "Checkpoints with equal weights"]
    assert headings == [*sections, "Figures", "To cite"]
    entries = re.findall(r'<li><a href="#part(\d)">([^<]*)</a></li>', page)
    assert entries == [(str(n), name) for n, name in enumerate([*sections, TITLE])]
    assert re.findall(r'id="part(\d)"', page) == ["0", "1", "2", "3"]
    cells = [unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", page)]
    assert cells == [
        *("a b, c", "x/a, a.gguf", "3: step1 to step4", "2" * 12, "float2"),
        *("d", "models/d", "main", "3" * 12, "float3"),
        *("c", "3"),
        *("m", "step1", "step2", "m", "step2", "step1"),
    ]
    labels = re.findall(r'<td data-label="([^"]*)">', page)[:5]
    assert labels == ["Model", "Source", "Checkpoints", "Last weights (SHA-256)", "Precision"]
    assert "Jobs that run models took 1,234 seconds." in page
    assert (
        '<img alt="The &quot;law&quot; &lt;b&gt;. First *sentence." width="' in page
        and "Second." in page
    )
    assert "class=wide" in page and "tabindex=0" in page
    assert "key &quot;1&quot;" in page


def test_the_page_has_the_runs_name_a_dark_mode_and_bibtex(page: str) -> None:
    (title,) = re.findall(r"<title>(results\d*): what each layer represents</title>", page)
    assert f"<h1>{title}: what each layer represents</h1>" in page
    assert "prefers-color-scheme: dark" in page
    bibtex = unescape(page.split("<pre>")[1].split("</pre>")[0])
    assert bibtex.count("@") == 2 and bibtex.count("{") == bibtex.count("}")


def test_the_table_of_best_layers_as_latex_and_markdown() -> None:
    scores = [tidy_scores(np.roll(VALUES, n, axis=1), model=f"m_{n}") for n in range(2)]
    found = first_table(pd.concat(scores), Order(["m_1"]))
    assert found["score"].tolist() == pytest.approx([VALUES.mean(axis=0).max()] * 2)
    table = shown(found)
    assert tuple(table.columns) == SHOWN_COLUMNS
    # The models' best layers differ, and each row has its own.
    assert table["Model"].tolist() == ["m_1", "m_0"]
    assert table["Best layer"].tolist() == ["output", "1 of 2"]
    assert table["Compute saved"].tolist() == ["0%", "50%"]
    assert table["Output's score"].tolist() == ["60.0", "40.0"]
    latex, markdown = as_latex(table).splitlines(), as_markdown(table).splitlines()
    assert latex[0] == r"\begin{tabular}{lllllll}" and latex[-1] == r"\end{tabular}"
    rows = [line for line in latex if line.startswith("m")]
    assert [row.split(" & ")[:1] for row in rows] == [[r"m\_1"], [r"m\_0"]]
    assert all(row.count(" & ") == 6 and row.endswith(r" \\") for row in rows)
    assert len({line.count("|") for line in markdown}) == 1 and len(markdown) == 4


def test_checkpoints_of_the_first_table_are_in_the_order_of_training() -> None:
    steps = ["step1000", "step16", "main", "step2000"]
    scores = pd.concat([tidy_scores(VALUES, revision=step) for step in steps])
    in_time = ["step16", "step1000", "step2000", "main"]
    assert first_table(scores)["revision"].tolist() == in_time
    assert shown(first_table(scores))["Model"].tolist()[0] == "m (step16)"


@NEEDS_CHROMIUM
def test_the_page_fits_a_phone(page: str, tmp_path: Path) -> None:
    frame = f"""const frame = document.createElement("iframe");
    frame.width = 390; frame.height = 800; frame.srcdoc = {json.dumps(page)};
    document.body.append(frame);
    await new Promise((done) => frame.addEventListener("load", done));
    const root = frame.contentDocument.documentElement;
    const cell = frame.contentDocument.querySelector("td");
    return [root.scrollWidth <= frame.contentWindow.innerWidth,
            frame.contentWindow.getComputedStyle(cell).display];"""
    outer = tmp_path / "outer.html"
    outer.write_text("<!doctype html><html><head></head><body></body></html>")
    assert asked(outer, tmp_path, frame) == [True, "flex"]
