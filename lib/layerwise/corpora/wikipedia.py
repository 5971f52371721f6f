"""The slice of the English Wikipedia that gensim ships with its tests, as a table of paragraphs.

The pages of early 2016 with the lowest numbers (12, "Anarchism", to 775, "Algorithm"), as a
MediaWiki export: 106 articles, of which 102 hold prose. Wikipedia's text is under CC BY-SA 3.0.
"""

from __future__ import annotations

import bz2
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from layerwise.corpora.packages import gensim_file
from layerwise.corpora.paragraphs import Paragraph, write_paragraphs
from layerwise.corpora.wikimarkup import paragraphs
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_file
from layerwise.progress import Progress

log = logging.getLogger(__name__)

DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
PAGES = 206
ARTICLE_NAMESPACE = "0"


@dataclass(frozen=True)
class Article:
    """A page of the encyclopedia proper."""

    article_id: int
    """MediaWiki's page number."""
    title: str
    markup: str


def articles(path: Path) -> Iterator[Article]:
    """The articles of a MediaWiki export, in its order; no redirects, no other namespaces.

    Parameters
    ----------
    path : Path
        XML, compressed by bzip2.

    Raises
    ------
    LayerwiseError
        If the file is cut off or is no such export.
    """
    try:
        with bz2.open(path) as handle, Progress(PAGES, "reading articles", "pages") as progress:
            for _, element in ElementTree.iterparse(handle):
                space, _, tag = element.tag.rpartition("}")
                if tag != "page":
                    continue
                space += "}" if space else ""
                if (
                    element.findtext(space + "ns") == ARTICLE_NAMESPACE
                    and element.find(space + "redirect") is None
                ):
                    yield Article(
                        article_id=int(element.findtext(space + "id", "")),
                        title=element.findtext(space + "title", ""),
                        markup=element.findtext(f"{space}revision/{space}text", ""),
                    )
                # A page is as large as its article; kept ones would add up to the whole dump.
                element.clear()
                progress.update()
    except (OSError, EOFError, ElementTree.ParseError, ValueError) as error:
        raise LayerwiseError(
            f"{path} is not a whole MediaWiki export in bzip2 ({error}); reinstall gensim."
        ) from error


def unpack(target: Path, dump: Path | None = None, **facts: Any) -> int:
    """Write the table of paragraphs (`layerwise.corpora.paragraphs`).

    Takes about 4 seconds.

    Parameters
    ----------
    target : Path
        Parquet file.
    dump : Path, optional
        A MediaWiki export; gensim's by default.
    **facts
        More for the file's metadata: key and recipe of the job.

    Returns
    -------
    int
        Number of paragraphs.

    Raises
    ------
    LayerwiseError
        If gensim is not installed, the dump is damaged or `target` cannot be written.
    """
    dump = gensim_file(DUMP) if dump is None else Path(dump)
    rows = [
        Paragraph(article.article_id, article.title, number, text)
        for article in articles(dump)
        for number, text in enumerate(paragraphs(article.markup))
    ]
    if not rows:
        raise LayerwiseError(f"{dump} holds no paragraph of prose; is it a MediaWiki export?")
    facts |= {"source": dump.name, "source_sha256": sha256_file(dump), "licence": "CC-BY-SA-3.0"}
    write_paragraphs(target, rows, **facts)
    log.info("%d paragraphs of %d articles", len(rows), len({row.article_id for row in rows}))
    return len(rows)
