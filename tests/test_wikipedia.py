"""Wikipedia without its markup."""

import bz2
from pathlib import Path

import pandas as pd
import pytest

from quickstart.wikipedia import paragraphs, unpack


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Oak''' is a ''tree''.", "Oak is a tree."),
        ("An [[oak (tree)|oak]] is a [[tree]]s.", "An oak is a trees."),
        (
            "Oaks grow.<ref name=a>{{cite book|title=[[X]]}}</ref><ref name=a/> Slowly.",
            "Oaks grow. Slowly.",
        ),
        ("[[File:Oak.jpg|thumb|left|200px|An [[oak]], ''old''.]]\nOaks grow.", "Oaks grow."),
        ("Oaks grow. [[Category:Trees]]", "Oaks grow."),
        (
            "It is so.{{citation needed|date=May 2015}} And so{{sfn|Lee|2001|p=3}} on.",
            "It is so. And so on.",
        ),
        ("Athens ({{lang-el|Αθήνα}}; [[help]]) is a city.", "Athens is a city."),
        ("Salt&nbsp;water&mdash;2 &times; 3 litres.", "Salt water—2 × 3 litres."),
        (
            "About 10<sup>6</sup> on the 4<sup>th</sup> of H<sub>2</sub>O.",
            "About 10^6 on the 4th of H2O.",
        ),
        ("See [http://example.org the page] now.", "See the page now."),
        ("{{Infobox\n| a = [[b]]\n}}\nOaks grow.", "Oaks grow."),
    ],
)
def test_markup_reads_as_on_the_page(markup: str, text: str) -> None:
    assert paragraphs(markup) == [text]


@pytest.mark.parametrize(
    "markup",
    [
        "== Oaks grow ==",
        '{| class="wikitable"\n! Oaks\n|-\n| Oaks grow.\n|}',
        "<gallery>\nFile:Oak.jpg|Oaks grow.\n</gallery>",
        "The energy is <math>mc^2</math> there.",
        "The age is {{age|1950|1|1}} years.",
        "Oaks grow at https://example.org today.",
        "The following oaks grow:",
        "an unfinished quotation goes on.",
        "==References==\nTwo here.\n===Printed===\nThree here.\n==History==",
    ],
)
def test_what_is_no_whole_prose_is_left_out(markup: str) -> None:
    assert paragraphs(f"{markup}\n\nTrees grow.") == ["Trees grow."]


def export(*pages: str) -> bytes:
    namespace = "http://www.mediawiki.org/xml/export-0.10/"
    return bz2.compress(f'<mediawiki xmlns="{namespace}">{"".join(pages)}</mediawiki>'.encode())


def page(number: int, text: str, ns: int = 0, more: str = "") -> str:
    return (
        f"<page><title>T{number}</title><ns>{ns}</ns><id>{number}</id>{more}"
        f"<revision><id>{number + 100}</id><text>{text}</text></revision></page>"
    )


def test_redirects_and_other_namespaces_are_no_articles(tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml.bz2"
    dump.write_bytes(
        export(
            page(1, "One here."),
            page(2, "Two here.", more='<redirect title="T1"/>'),
            page(3, "Three here.", ns=4),
            page(4, "Four here.\n\nFive here."),
        )
    )
    unpack(tmp_path / "out.parquet", dump)
    rows = pd.read_parquet(tmp_path / "out.parquet").to_dict("list")
    assert rows["id"] == ["1-0", "4-0", "4-1"]
    assert rows["title"] == ["T1", "T4", "T4"]
