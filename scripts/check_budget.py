"""Check the size of the library against its budget in pyproject.toml (`make lint`)."""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def main() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    budget = settings["tool"]["layerwise"]["budget"]
    files = sorted((ROOT / "lib/layerwise").rglob("*.py"))
    sizes = {"lines": sum(code_lines(f.read_text("utf-8")) for f in files), "files": len(files)}
    for unit, size in sizes.items():
        sys.stdout.write(f"lib/layerwise: {size:,} {unit} of {budget[unit]:,}\n")
        if size > budget[unit]:
            sys.exit(
                f"lib/layerwise has {size - budget[unit]} {unit} too many. One in, one out: find "
                "what the addition makes needless (CONTRIBUTING.md)."
            )


if __name__ == "__main__":
    main()
