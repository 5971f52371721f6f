"""Adapts the pages for the documentation site.

The pages are also read in the repository, and their links go to its files. Here those files become
pages or downloads of the site, and links follow them; notebooks and the config's schema become
pages.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "README.md", "FINDINGS.md": "FINDINGS.md", "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md", "CONTRIBUTING.md": "CONTRIBUTING.md",
    "results/README.md": "files.md",
    "benchmarks/README.md": "benchmarks.md",
}  # fmt: skip
SCHEMA = "config.schema.json"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
# Of a page of the site, its place in the repository.
HOME = {site: repository for repository, site in PAGES.items()}
PAGES |= {SCHEMA: "config.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside this folder, the notebooks, and the keys of the config."""
    for site, repository in HOME.items():
        content = (ROOT / repository).read_text(encoding="utf-8")
        files.append(File.generated(config, site, content=content))
    schema = json.loads((ROOT / SCHEMA).read_text(encoding="utf-8"))
    files.append(File.generated(config, PAGES[SCHEMA], content=_keys(schema)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, page, content=_notebook(path)))
    linked = {
        target for file in files.documentation_pages()
        for target in _outside(file.src_uri, file.content_string)
    }  # fmt: skip
    for target in sorted(linked):
        data = (ROOT / target).read_bytes()
        files.append(File.generated(config, _download(target), content=data))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to files of the repository go to where the site has them."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups()
        place = _repository(here, target)
        if place is None:
            return found[0]
        path = posixpath.relpath(_site(place), posixpath.dirname(here) or ".")
        return f"{before}{path}{anchor or ''}{after}"

    parts, end = [], 0
    for code in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])


def _repository(here: str, target: str) -> str | None:
    """The path in the repository that a link of a page means; None of an address."""
    if re.match(r"[a-z]+:|/", target):
        return None
    folder = posixpath.dirname(HOME.get(here, f"docs/{here}"))
    place = posixpath.normpath(posixpath.join(folder, target))
    return f"{place}/README.md" if (ROOT / place).is_dir() else place


def _site(place: str) -> str:
    """The address of a repository's file on the site."""
    if place in PAGES:
        return PAGES[place]
    if place.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", place.removeprefix("docs/"))
    return _download(place)


def _download(place: str) -> str:
    # ProperDocs leaves out files whose names begin with a dot.
    return "files/" + place.replace("/.", "/dot-")


def _outside(here: str, markdown: str) -> set[str]:
    """The files that a page links to and the site does not have yet."""
    found = set()
    for link in LINK.finditer(FENCE.sub("", markdown)):
        place = _repository(here, link[2])
        if place and _site(place).startswith("files/") and (ROOT / place).is_file():
            found.add(place)
    return found


def _keys(schema: dict[str, Any]) -> str:
    """The config's schema as Markdown: a table of the keys of each section and entry."""
    parts = ["# Keys of a config", "Reference, made from `config.schema.json`."]
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        rows = ["| key | default | meaning |", "|---|---|---|"]
        for key, entry in section["properties"].items():
            meaning = " ".join(entry.get("description", "").split())
            of = dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(entry)))
            links = ", ".join(f"[{part}](#{part.lower()})" for part in of)
            default = "required" if key in section.get("required", ()) else entry.get("default")
            shown = "" if of and default != "required" else f"`{json.dumps(default)}`"
            cells = f"`{key}`", shown, f"{meaning} {links and f'Keys: {links}.'}"
            rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
        parts += [f"## {name}", section["description"], "\n".join(rows)]
    return "\n\n".join(parts)


def _notebook(path: Path) -> str:
    """A notebook as Markdown, with the outputs that it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                parts.append(f"![Figure](data:image/png;base64,{image})")
            else:
                shown = "".join(output.get("text") or data.get("text/plain", []))
                parts.append(f"```\n{shown.rstrip()}\n```")
    parts.append(f"This page is `docs/notebooks/{path.name}`, which runs in the tests.")
    return "\n\n".join(parts)
