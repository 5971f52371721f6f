"""Normalised source code for hashes: only the statements that decide a value."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping

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


def texts(modules: Iterable[str]) -> dict[str, str]:
    """Source, by name, of modules, of this one, and of the loaded formulas."""
    loaded = [name for name in sys.modules if name.startswith(FOLLOWED)]
    names = [__name__, *sorted({*modules, *loaded})]
    return {name: inspect.getsource(sys.modules[name]) for name in names}


def essence(modules: Iterable[str], sources: Mapping[str, str]) -> dict[str, str]:
    """Normalised source of modules, and of the formulas that they import, by module name.

    Parameters
    ----------
    sources : mapping
        From `texts`.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = normalised(sources[name])
            waiting += [other for other in _imports(sources[name]) if other in sources]
    return found


def _imports(source: str) -> list[str]:
    """Names below those of `FOLLOWED` that the source imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith(FOLLOWED)]
