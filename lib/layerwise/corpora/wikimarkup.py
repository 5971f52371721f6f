"""Plain English paragraphs out of MediaWiki markup.

A paragraph comes out as a reader of the page would see it, or not at all. What cannot be rendered
without MediaWiki itself (a formula, an unknown template) leaves a *hole*. A hole in parentheses
removes the parentheses, a hole elsewhere removes the paragraph. Headings, lists, tables, notes,
pictures and the end matter of an article are not prose and are left out.

The stripping that libraries have was tried on gensim's slice of Wikipedia, with the same test of
whole sentences. Paragraphs of at least 30 tokens that are left:

===================================== ===== ====================================================
this module                           4,143
mwparserfromhell's ``strip_code``     4,134 of which 1,569 differ: notes in the text, words gone
the same, notes taken out before      4,534 of which 399 have a hole where a template or formula
                                            was, so 4,135 are whole
gensim's ``filter_wiki``              3,190 of which 489 differ: words gone
===================================== ===== ====================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Node, Tag, Template, Wikilink
    from mwparserfromhell.wikicode import Wikicode

# Private-use characters mark what is not text until the paragraphs are split.
HOLE, BOX, ITEM = "\ue000", "\ue001", "\ue002"
BREAK = "\n\n"

END_MATTER = frozenset({
    "bibliography", "citations", "discography", "external links", "filmography", "footnotes",
    "further reading", "gallery", "literature", "notes", "notes and references", "publications",
    "references", "references and notes", "see also", "selected bibliography", "sources", "works",
    "works cited",
})  # fmt: skip
# Namespaces whose links show a picture, file a page or lead to another language.
HIDDEN_LINK = re.compile(r"\s*(file|image|category|media|[a-z]{2,3}(-[a-z]+)*)\s*:(?!\s)", re.I)

INLINE_TAGS = frozenset({
    "abbr", "b", "bdi", "big", "center", "cite", "del", "em", "font", "i", "ins", "kbd", "nowiki",
    "onlyinclude", "p", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "tt",
    "u", "var",
})  # fmt: skip
BLOCK_TAGS = frozenset({"blockquote", "div"})
# Apart from the text: a sentence is whole without them.
SILENT_TAGS = frozenset({
    "gallery", "imagemap", "includeonly", "noinclude", "ref", "references", "templatestyles",
})  # fmt: skip

# Templates that add only a note or a mark to their sentence, or nothing.
SILENT_TEMPLATES = frozenset({
    "#tag:ref", "anchor", "anchors", "as of?", "better source", "by whom", "citation",
    "citation needed", "clarify", "clarify span", "cn", "contradict-inline", "dead link",
    "disputed inline", "disputed-inline", "dubious", "efn", "en icon", "engvarb", "fact",
    "failed verification", "fr icon", "full", "gr icon", "importance inline", "inflation-fn",
    "isbn", "issn", "link language", "need quotation to verify", "nonspecific", "not in source",
    "notetag", "npov-statement", "oclc", "or", "original research inline", "page needed",
    "prone to spam", "qualify evidence", "r", "ref", "refn", "relevance inline", "rp", "specify",
    "synthesis-inline", "update after", "update inline", "vague", "verify credibility",
    "verify source", "wayback", "weasel-inline", "webarchive", "when", "where", "which", "who",
    "whom", "why", "z148",
})  # fmt: skip
SILENT_PREFIXES = ("cite ", "citation/", "harv", "sfn", "vcite ", "use dmy", "use mdy")
SPACES = {"nbsp": " ", "thinsp": " ", "space": " ", "spaces": " ", "snd": " – ", "snds": " – "}
DASHES = {"ndash": "–", "mdash": "—", "spaced ndash": " – ", "mdashb": "—", "spnd": " – "}
MARKS = {"'": "'", "' \"": "' \"", "\" '": "\" '", "'s": "'s", "okina": "ʻ", "!": "|", "=": "="}
LITERAL = SPACES | DASHES | MARKS

EMPTIED = re.compile(r"\s*\((?:[\s,;:.]|\b(?:or|and)\b)*\)")
PARENTHESES_WITH_HOLE = re.compile(rf"\s*\([^()]*[{HOLE}{BOX}](?:[^()]|\([^()]*\))*\)")
LEFTOVER = re.compile(r"[{}\[\]|\\<>=\ue000-\uf8ff\ufffd]|https?:|www\.|''|__|\b\d+px\b|&#?\w+;")
SENTENCE_END = re.compile(r"[.!?][\"”’')]*$")
OPENING = "\"“‘'(["


def paragraphs(markup: str) -> list[str]:
    """The paragraphs of an article's prose, in order, each on one line.

    Parameters
    ----------
    markup : str
        MediaWiki markup.

    Returns
    -------
    list of str
        Paragraphs that begin with a letter or digit (or an opening quotation mark) and end a
        sentence; single spaces; no markup.
    """
    import mwparserfromhell

    code = mwparserfromhell.parse(_cut_end_matter(markup), skip_style_tags=True)
    text = re.sub(r"__[A-Z]{3,}__", "", _render(code))
    # Only now, so that quotes around a hidden template or link meet and go too.
    text = re.sub(r"'{2,}", "", text)
    cleaned = (_tidy(block) for block in re.split(r"\n\s*\n", text))
    return [p for p in cleaned if _is_prose(p)]


def _is_prose(text: str) -> bool:
    """Whether a block reads as whole sentences: a capital or digit first, a full stop last."""
    first = text.lstrip(OPENING)[:1]
    return (
        first.isalnum()
        and not first.islower()
        and SENTENCE_END.search(text) is not None
        and LEFTOVER.search(text) is None
    )


def _cut_end_matter(markup: str) -> str:
    """Leave out the sections that are lists of references and links."""
    kept: list[str] = []
    skip_below = 0
    for line in markup.split("\n"):
        heading = re.match(r"(={2,6})\s*(.+?)\s*\1\s*(?:<!--.*-->\s*)?$", line)
        if heading:
            level = len(heading[1])
            if skip_below and level > skip_below:
                continue
            skip_below = level if heading[2].lower() in END_MATTER else 0
        if not skip_below:
            kept.append(line)
    return "\n".join(kept)


def _render(code: Wikicode) -> str:
    return "".join(_RENDERERS.get(type(node).__name__, _hole)(node) for node in code.nodes)


def _hole(_: Node) -> str:
    return HOLE


def _text(node: Any) -> str:
    return re.sub(f"[{HOLE}{BOX}{ITEM}]", "", str(node.value))


def _entity(node: Any) -> str:
    return str(node.normalize()).replace("\xa0", " ")


def _wikilink(node: Wikilink) -> str:
    title = str(node.title).strip()
    if HIDDEN_LINK.match(title):
        return ""
    if node.text is None:
        return title.lstrip(":")
    shown = _render(node.text)
    # [[Mercury (planet)|]] shows "Mercury".
    return shown if shown.strip() else re.sub(r"^:?(\w+:)?|\s*\([^()]*\)$", "", title)


def _external_link(node: Any) -> str:
    if not node.brackets:
        return HOLE
    return _render(node.title) if node.title is not None else ""


def _tag(node: Tag) -> str:
    name = str(node.tag).strip().lower()
    if name in {"li", "dd", "dt"}:
        return f"\n{ITEM}"
    if name in SILENT_TAGS:
        return ""
    if name in {"table", "hr", "timeline", "ol", "ul", "dl"}:
        return BREAK
    if name == "br":
        return " "
    if name in INLINE_TAGS | BLOCK_TAGS:
        inner = "" if node.contents is None else _render(node.contents)
        if name in BLOCK_TAGS:
            return BREAK + inner + BREAK
        # 10<sup>6</sup> must not become 106.
        if name == "sup" and re.fullmatch(r"[-+−–\d.]+", inner.strip()):
            return "^" + inner.strip()
        return inner
    return HOLE


def _template(node: Template) -> str:
    name = re.sub(r"[\s_]+", " ", str(node.name)).strip().lower()
    if name in LITERAL:
        return LITERAL[name]
    # {{convert|67|in|adj=on}} shows "67-inch", in the singular, which is not known for every unit.
    if name in SHOWN and not node.has("adj"):
        shown = SHOWN[name]([_render(p.value).strip() for p in node.params if not p.showkey])
        return shown[:1].lower() + shown[1:] if node.has("lc") else shown
    if name in SILENT_TEMPLATES or name.startswith(SILENT_PREFIXES):
        return ""
    return BOX


def _first(values: list[str]) -> str:
    return values[0] if values else HOLE


def _last(values: list[str]) -> str:
    return values[-1] if values else HOLE


def _block(values: list[str]) -> str:
    return BREAK + _first(values) + BREAK


def _convert(values: list[str]) -> str:
    """``{{convert|30|km|mi}}`` and ``{{convert|30|to|40|km|mi}}`` show the first unit's value."""
    if len(values) >= 4 and values[1] in {"to", "and", "-", "–", "by", "x"}:
        joint = "–" if values[1] in {"-", "–"} else f" {values[1]} "
        return f"{_grouped(values[0])}{joint}{_grouped(values[2])} {_unit(values[3])}"
    if len(values) >= 2:
        return f"{_grouped(values[0])} {_unit(values[1])}"
    return HOLE


def _grouped(number: str) -> str:
    whole, point, rest = number.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.isdecimal() else number


def _unit(symbol: str) -> str:
    return UNITS.get(symbol, symbol)


UNITS = {
    "sqmi": "square miles", "sqkm": "km²", "km2": "km²", "m2": "m²", "sqft": "square feet",
    "cuft": "cubic feet", "C": "°C", "F": "°F", "in": "inches", "ft": "feet", "mi": "miles",
    "lb": "pounds", "acre": "acres", "ha": "hectares", "yd": "yards", "m3": "m³", "K": "K",
}  # fmt: skip

SHOWN: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(
        ("nowrap", "nobr", "small", "smaller", "big", "larger", "sc", "smallcaps", "unicode",
         "polytonic", "vanchor", "visible anchor", "abbr", "sic", "nihongo", "angbr", "em"),
        _first,
    ),
    **dict.fromkeys(("script", "rtl-lang", "transl", "lang"), _last),
    **dict.fromkeys(("quote", "bquote", "blockquote", "cquote"), _block),
    "circa": lambda v: "c. " + _first(v) if v else "c.",
    "as of": lambda v: "As of " + _first(v),
    "uss": lambda v: "USS " + _first(v),
    "hms": lambda v: "HMS " + _first(v),
}  # fmt: skip

_RENDERERS: dict[str, Callable[[Any], str]] = {
    "Text": _text,
    "HTMLEntity": _entity,
    "Wikilink": _wikilink,
    "ExternalLink": _external_link,
    "Tag": _tag,
    "Template": _template,
    "Comment": lambda _: "",
    "Heading": lambda _: BREAK,
}


def _tidy(block: str) -> str:
    """One block as one line: no list items, no emptied parentheses, no space before a comma."""
    lines = [line.strip() for line in block.split("\n")]
    # A template on a line of its own is a box beside the text, not a word in it.
    text = " ".join(x for x in lines if not x.startswith(ITEM) and x.strip(BOX + " "))
    for _ in range(3):
        text = PARENTHESES_WITH_HOLE.sub("", text)
    text = EMPTIED.sub("", text)
    text = re.sub(r"\(\s*[,;:]\s*", "(", text)
    text = re.sub(r"\s*[,;:]\s*\)", ")", text)
    text = re.sub(r"[\s\u200b\u200e\u200f\ufeff]+", " ", text)
    text = re.sub(r" ([,.;:!?)])(?=[\s\"”)]|$)", r"\1", text)
    text = re.sub(r"\( ", "(", text)
    return text.strip()
