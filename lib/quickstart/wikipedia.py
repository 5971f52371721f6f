"""The slice of the English Wikipedia that gensim ships with its tests, as a table of paragraphs.

Its columns are ``id`` (number of the article and of the paragraph in it), ``title`` and ``text``.

The pages of early 2016 with the lowest numbers (12, "Anarchism", to 775, "Algorithm"), as a
MediaWiki export: 106 articles, 102 with prose. Wikipedia's text is under CC BY-SA 3.0.

mwparserfromhell strips the markup. What it cannot render without MediaWiki (a formula, a template)
leaves a *hole*: a hole in parentheses removes the parentheses, a hole elsewhere the paragraph.
"""

from __future__ import annotations

import bz2
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pandas as pd

from layerwise.io import tables
from layerwise.io.files import sha256_file
from layerwise.io.tables import Kind
from layerwise.project import package_folder, require

log = logging.getLogger(__name__)

DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
ARTICLE_NAMESPACE = "0"

PARAGRAPHS = Kind("quickstart.paragraphs", 1)

# A full stop ends a sentence after a word of two or more small letters or digits ("Dr.", "e.g."
# and initials do not), before a capital.
BETWEEN_SENTENCES = re.compile(r"(?<=[a-z0-9)\"”][a-z0-9)\"”][.!?])\s+(?=[A-Z\"“])")

HOLE = "\ue000"
END_MATTER = re.compile(
    r"^==\s*(?:see also|references|sources|(?:selected )?bibliography|further reading"
    r"|external links|gallery|publications)\s*==.*?(?=^==[^=]|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
# Notes, marks of editors and what is no running text: a sentence is whole without them.
SILENT_TAGS = ("ref", "table")
SILENT_TEMPLATES = re.compile(
    r"cit(e |ation)|sfn|efn|refn?\b|rp$|#tag:ref|full$|clarify|dubious|page needed|better source"
    r"|verif|failed|update|(by )?who$|which$|when$|where$",
    re.IGNORECASE,
)
HIDDEN_LINK = re.compile(r"(file|image|category):", re.IGNORECASE)
LEFTOVER = re.compile(rf"[{HOLE}{{}}\[\]|\\<>=]|https?:|www\.")
SENTENCE_END = re.compile(r"[.!?][\"”’')]*$")
OPENING = "\"“‘'(["


class Paragraph(NamedTuple):
    """A paragraph of an article."""

    id: str
    title: str
    text: str


def gensim_file(name: str) -> Path:
    """A file of gensim's test data. gensim itself, slow to import, is not loaded."""
    return package_folder("gensim") / "test" / "test_data" / name


def articles(path: Path) -> Iterator[tuple[int, str, str]]:
    """Page number, title and markup of the articles of a MediaWiki export, in its order.

    Redirects and pages of other namespaces are left out.
    """
    with bz2.open(path) as handle:
        for _, page in ElementTree.iterparse(handle):
            if not page.tag.endswith("page"):
                continue
            redirect = page.find("{*}redirect") is not None
            if page.findtext("{*}ns") == ARTICLE_NAMESPACE and not redirect:
                yield (
                    int(page.findtext("{*}id", "")),
                    page.findtext("{*}title", ""),
                    page.findtext("{*}revision/{*}text", ""),
                )
            # A page is as large as its article; kept ones would add up to the whole dump.
            page.clear()


def paragraphs(markup: str) -> list[str]:
    """Return the paragraphs of an article's prose, in order, each on one line.

    A paragraph begins with a capital or digit, ends a sentence, and holds no markup.
    """
    mwparserfromhell = require("mwparserfromhell", "quickstart")

    code = mwparserfromhell.parse(END_MATTER.sub("", markup), skip_style_tags=True)
    _replace(code)
    text = re.sub("'{2,}", "", code.strip_code())
    return [block for block in map(_tidy, text.split("\n")) if _is_prose(block)]


def _replace(code: Any) -> None:
    """Replace the nodes that `strip_code` cannot render, those in links and tags too."""
    from mwparserfromhell.nodes import Tag, Text, Wikilink

    for place, node in enumerate(code.nodes):
        shown = _shown(node)
        if shown is not None:
            code.nodes[place] = Text(shown)
        elif isinstance(node, Tag | Wikilink):
            inner = node.contents if isinstance(node, Tag) else node.text
            if inner is not None:
                _replace(inner)


def _shown(node: Any) -> str | None:
    """Text in place of a node; None for what `strip_code` renders."""
    kind = type(node).__name__
    if kind == "Template":
        return "" if SILENT_TEMPLATES.match(str(node.name).strip()) else HOLE
    if kind == "Wikilink" and HIDDEN_LINK.match(str(node.title)):
        return ""
    if kind != "Tag":
        return None
    if node.tag == "sup" and re.fullmatch(r"[-+−–\d.]+", str(node.contents).strip()):
        return f"^{str(node.contents).strip()}"  # 10<sup>6</sup> must not become 106
    return "" if node.tag in SILENT_TAGS else HOLE if node.tag == "math" else None


def _tidy(block: str) -> str:
    # A template at the beginning is a box next to the text, not a word in it.
    text = block.lstrip(HOLE + " ")
    for _ in range(2):
        text = re.sub(rf"\s*\([^()]*{HOLE}[^()]*\)", "", text)
    text = re.sub(r"\s*\([\s,;:]*\)", "", text)
    text = re.sub(r"\(\s*[,;:]?\s*", "(", text)
    text = re.sub(r"\s*[,;:]?\s*\)", ")", text)
    text = " ".join(text.split())
    return re.sub(r" ([,.;:!?])(?=[\s\"”)]|$)", r"\1", text)


def _is_prose(text: str) -> bool:
    first = text.lstrip(OPENING)[:1]
    whole = first.isalnum() and not first.islower() and SENTENCE_END.search(text) is not None
    return whole and LEFTOVER.search(text) is None


def unpack(target: Path, dump: Path | None = None, **facts: Any) -> None:
    """Write the table of paragraphs.

    Parameters
    ----------
    target : Path
        Parquet file.
    dump : Path, optional
        A MediaWiki export; gensim's by default.
    **facts
        Key and provenance, for the file's metadata.

    Raises
    ------
    LayerwiseError
        If gensim is not installed, or `target` cannot be written.
    """
    dump = dump or gensim_file(DUMP)
    rows = [
        Paragraph(f"{article}-{number}", title, text)
        for article, title, markup in articles(dump)
        for number, text in enumerate(paragraphs(markup))
    ]
    facts |= {"source": dump.name, "source_sha256": sha256_file(dump), "licence": "CC-BY-SA-3.0"}
    tables.write(target, pd.DataFrame(rows), kind=PARAGRAPHS, **facts)
    log.info("%d paragraphs of %d articles", len(rows), len({row.title for row in rows}))


def sentences_of(text: str) -> list[str]:
    """The sentences of a paragraph's text."""
    return BETWEEN_SENTENCES.split(text.strip())


def read_paragraphs(path: Path) -> list[Paragraph]:
    """All paragraphs in the table's order.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, edited, or of another kind or version.
    """
    frame = tables.read(path, "paragraphs", Paragraph._fields, kind=PARAGRAPHS)
    return [Paragraph(*row) for row in frame.itertuples(index=False)]
