"""Normalised source code for hashes: only the statements that decide a value."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache

# Modules whose code is part of a formula, when a metric's file imports them.
FOLLOWED = ("layerwise.metrics.formulas", "layerwise.metrics.catalog")

# Keywords of `metric(...)` that describe a value without changing it.
DESCRIPTIVE = frozenset(
    {"direction", "label", "note", "orders", "per_prompt", "range", "source", "unit"}
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


def texts(modules: Iterable[str]) -> list[str]:
    """Source of all that decides the normalised source of modules: this file, formulas, names."""
    loaded = [name for name in sys.modules if name.startswith(FOLLOWED)]
    names = [__name__, *sorted({*modules, *loaded})]
    return [text for name in names for text in (name, inspect.getsource(sys.modules[name]))]


@cache
def modules_of(module: str) -> dict[str, str]:
    """Normalised source of a module, and of the formulas that it imports, by module name."""
    sources: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        source = inspect.getsource(sys.modules[name])
        sources[name] = normalised(source)
        waiting += _imports(source)
    return sources


def _imports(source: str) -> list[str]:
    """Names of the loaded modules of `FOLLOWED` that the source imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith(FOLLOWED) and name in sys.modules]
