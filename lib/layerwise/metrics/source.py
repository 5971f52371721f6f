"""Hashes of source code: of the statements that decide a value alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from layerwise.io.files import cached, sha256_bytes, sha256_text

# Keywords of `metric(...)` that describe a value without changing it.
DESCRIPTIVE = frozenset(
    {"bounds", "direction", "label", "note", "orders", "per_prompt", "range", "source", "unit"}
)


def normalised(source: str) -> str:
    """Rewrite a module without comments, docstrings, type hints, formatting and error messages.

    >>> normalised('def f(x: int) -> int:  # add one\\n    "Add one."\\n    return x+1')
    'def f(x):\\n    return x + 1'
    """
    return ast.unparse(_Essence().visit(ast.parse(source)))


class _Essence(ast.NodeTransformer):
    """Drops code that cannot change a value."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        # Docstrings, also those of settings.
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [word for word in node.keywords if word.arg not in DESCRIPTIVE]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=raised, cause=None)


def source_hash(*places: Path) -> str:
    """Hash of files, and of all Python files in folders.

    Comments, docstrings, type hints, labels, formatting and error messages do not count.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    files = [f for p in places for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    # Read once: a file may be edited in between.
    rules, *texts = [file.read_text(encoding="utf-8") for file in (Path(__file__), *files)]
    # Normalising takes as long as many a job does; Python's versions write code differently.
    name = sha256_text("code", sys.version, rules, *texts)
    return cached(name, lambda: sha256_bytes("\n".join(map(normalised, texts)).encode()))[:16]


def formula_hash(metric_file: Path) -> str:
    """Hash of the code behind the metrics of a file: the file, and all formulas."""
    return source_hash(metric_file, Path(__file__).with_name("formulas"))
