"""Check sizes of library, add-ons and tests against the budget in pyproject.toml (`make lint`)."""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".js", ".css", ".html", ".yaml", ".yml", ".cu", ".smk", ".mplstyle", ".rst"}
# How a line begins that is a comment; # elsewhere.
COMMENTS = {".js": ("//", "/*", "*"), ".cu": ("//", "/*", "*"), ".css": "/*", ".html": "<!--"}
COMMENTS |= {".rst": ".. "}
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Lines of Python that are not blank, a comment or a docstring."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in {*LAYOUT, tokenize.COMMENT}:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            code.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(code)


def lines_of(file: Path) -> int:
    """Lines of a file that are not blank or a comment; of Python also no docstring."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        return code_lines(text)
    mark = COMMENTS.get(file.suffix, "#")
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(mark) for line in stripped)


def files_of(folder: str) -> list[Path]:
    """The sources below a folder, of every suffix that somebody writes by hand."""
    files = sorted((ROOT / folder).rglob("*"))
    return [f for f in files if f.suffix in SUFFIXES or f.name == "Snakefile"]


def main() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for where, budget in settings["tool"]["layerwise"]["budget"].items():
        files = [file for folder in where.split() for file in files_of(folder)]
        sizes = {"lines": sum(map(lines_of, files)), "files": len(files)}
        for unit, most in budget.items():
            sys.stdout.write(f"{where}: {sizes[unit]:,} {unit} of {most:,}\n")
            if sizes[unit] > most:
                sys.exit(
                    f"{where} has {sizes[unit] - most} {unit} too many. One in, one out: find "
                    "what the addition makes needless (CONTRIBUTING.md)."
                )


if __name__ == "__main__":
    main()
