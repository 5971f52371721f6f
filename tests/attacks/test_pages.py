"""Names, prompts and captions that would be markup, formulas, terminal sequences or code."""

from __future__ import annotations

import csv
import html
import io
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from attack import RIGHT, Tally, is_a_sentence, tally
from docutils.core import publish_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layerwise.cli import Plain

from layerwise import tables
from layerwise.errors import LayerwiseError, printable
from layerwise.figures.render import Drawn, plain

__all__ = ["tally"]

AREA = "injection"
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))

SECRET = "the content of a file of this machine"
MARKUP = [
    "x\n\n.. raw:: html\n\n   <script>boom()</script>\n", ".. raw:: html\n\n   <script>boom()</script>",
    ".. include:: {secret}", "x\n\n.. include:: {secret}\n", ".. image:: x.png\n   :target: javascript:boom()",
    "`x <javascript:boom()>`_", "`x <javascript:boom()>`__", "|x|\n\n.. |x| raw:: html\n\n   <script>boom()</script>",
    ":raw-html:`<script>boom()</script>`", ".. role:: raw-html(raw)\n   :format: html",
    "javascript:boom()", "data:text/html,<script>boom()</script>", "http://evil.example/", "a@evil.example",
    "<script>boom()</script>", "</script><script>boom()</script>", "<img src=x onerror=boom()>",
    "\"><svg onload=boom()>", "{{ 7 * 7 }}", "{% for x in y %}", "\\", "\\\\", "*", "**", "``", "_", "x_", "__",
    "[1]_", "[x]", "- a", "1. a", "A. a", "+---+\n| a |\n+---+", "====\nx\n====", "::", "x::", "x::\n\n  y",
    ".. csv-table::\n   :file: {secret}", ".. code::\n   :include: {secret}", ".. math:: x", ":math:`x`",
    "\x1b[31mred\x1b[0m", "\x07", "\u202etxt.exe", "a\x00b", "\u2028.. raw:: html", "\x85.. raw:: html",
    "a\tb", "`javascript:boom()`_", ":a: b", ">>> x", "--x  y", "-x  y", "| x",
]  # fmt: skip
TAGS = {"p", "strong", "div", "h1", "li", "ul", "table", "tbody", "thead", "tr", "td", "th", "em",
        "cite", "main", "section", "colgroup", "col", "br"}  # fmt: skip


def body(rst: str) -> str:
    """HTML as the report has it, without warnings of the parser on its terminal."""
    quiet = {"report_level": 5, "halt_level": 5, "warning_stream": io.StringIO()}
    return str(publish_parts(rst, writer_name="html", settings_overrides=quiet)["body"])


def is_plain(rst: str, text: str) -> None:
    """The page has no tags but those of a paragraph, and the text stands in it as it is."""
    made = body(rst)
    tags = {t.lower() for t in re.findall(r"<\s*/?\s*([A-Za-z][\w-]*)", made)}
    assert tags <= TAGS, made
    assert SECRET not in made
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", "", made)).split())
    shown = " ".join(printable(text).split())
    assert shown in words, (words, shown)


def caption(text: str) -> str:
    return Drawn(figure=None, table=pd.DataFrame(), title=f"{text} is best", caption=text).rst()  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "file.txt"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("text", MARKUP, ids=ascii)
def test_captions(tally: Tally, secret: Path, text: str) -> None:
    text = text.replace("{secret}", str(secret))
    is_plain(plain(text) + "\n", text)
    is_plain(caption(text), text)
    tally.note(AREA, RIGHT)


@FUZZ
@given(text=st.text(min_size=1, max_size=40).filter(lambda t: printable(t).strip()))
def test_captions_of_any_text(tally: Tally, text: str) -> None:
    is_plain(caption(text), text)
    tally.note(AREA, RIGHT)


@FUZZ
@given(text=st.text(alphabet=".:*`_|<>\\-+=~#@[](){}'\"^/ ax1\n\t", min_size=1, max_size=30))
def test_captions_of_markup(tally: Tally, text: str) -> None:
    is_plain(f"Seen. {plain(text)} End.\n", text)
    body(plain(text))
    tally.note(AREA, RIGHT)


# Spreadsheets

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", " =1", "\r=1", "\n=1", "=", "-",
            "=HYPERLINK(\"http://evil.example\")", "\u00a0=1"]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_formulas_in_tables(tally: Tally, tmp_path: Path, text: str) -> None:
    table = pd.DataFrame({"prompt": [text, "fine"], "value": [-1.5, 2.0], "n": [-1, 1]})
    tables.write_csv(tmp_path / "t.csv", table)
    with (tmp_path / "t.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))
    assert rows[1][0] == f"'{printable(text)}"
    assert len(rows) == 3
    assert rows[2][0] == "fine"
    assert [float(row[1]) for row in rows[1:]] == [-1.5, 2.0]
    assert rows[1][2] == "-1"
    tally.note(AREA, RIGHT)


def test_every_table_for_people_is_written_so() -> None:
    root = Path(tables.__file__).parents[2]
    loose = [p for d in ("lib", "scripts") for p in (root / d).rglob("*.py")
             if p.name != "tables.py" and ".to_csv(" in p.read_text()]  # fmt: skip
    assert not loose


def test_numbers_stay_as_they_are(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [0.1, None], "b": ["x", None], "c": [True, False]})
    tables.write_csv(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text() == table.to_csv(index=False)


# Logs


@FUZZ
@given(text=st.text() | st.sampled_from(MARKUP))
def test_logs_hold_no_control_characters(tally: Tally, text: str) -> None:
    record = logging.LogRecord("layerwise", logging.INFO, "x.py", 1, "%s", (text,), None)
    try:
        raise ValueError(text)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    lines = Plain("%(asctime)s %(message)s").format(record).split("\n")
    assert all(line.isprintable() for line in lines)
    # Nothing that came can pass for an entry.
    assert all(line.startswith("  ") for line in lines[1:])
    tally.note(AREA, RIGHT)


@FUZZ
@given(text=st.text(max_size=3000))
def test_errors_are_one_line_whatever_they_quote(tally: Tally, text: str) -> None:
    is_a_sentence(str(LayerwiseError(f"What came: {text}.")))
    again = LayerwiseError(f"What came: {text}.")
    assert str(LayerwiseError(str(again))) == str(again)
    tally.note(AREA, RIGHT)


# A browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def shown(page: Path, profile: Path, *, network: bool = False) -> str:
    """The page's HTML after its scripts have run."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=9000",
         f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium (apt-get install chromium)")
def test_captions_in_a_browser(tally: Tally, secret: Path, tmp_path: Path) -> None:
    texts = [text.replace("{secret}", str(secret)) for text in MARKUP]
    parts = [body(caption(t)) for t in texts]
    page = tmp_path / "page.html"
    page.write_text(
        "<meta charset=utf-8><script>function boom(){document.title='H'+'IT'}</script>"
        + "\n".join(parts),
        encoding="utf-8",
    )
    seen = shown(page, tmp_path / "profile")
    assert "HIT" not in seen
    assert SECRET not in seen
    assert "<a " not in seen
    for _ in texts:
        tally.note(AREA, RIGHT)
    # The test sees what it looks for.
    page.write_text("<script>document.title='H'+'IT'</script>")
    assert "HIT" in shown(page, tmp_path / "profile")
