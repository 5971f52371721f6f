"""The version of a computation, read off its source.

Snakemake reruns a job when its parameters change, but does not see edits in a library. So each
rule gets the fingerprint of the modules that compute its result as a parameter: a hash over
their syntax trees, docstrings and annotations left out. Editing a formula changes it;
reformatting, comments, docstrings, type hints, touching the file or pulling a commit that does
not touch the computation do not.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

PACKAGE = "layerwise"
ROOT = Path(__file__).parent

# What these know cannot change a value: how errors read, where logs go, how files are replaced.
WITHOUT_EFFECT = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        *("errors", "cli", "progress", "files", "paths", "fingerprint"),
        *("models.devices", "models.quiet"),
    )
)


@cache
def fingerprint(*modules: str) -> str:
    """Hash of the given modules and of all of layerwise that they import, 16 hex digits.

    Parameters
    ----------
    modules : str
        Dotted names, such as ``"layerwise.activations.extract"``; ``"layerwise.metrics.*"``
        stands for every module of the package.

    Raises
    ------
    ModuleNotFoundError
        If there is no such module.
    """
    pending = [name for module in modules for name in _expand(module)]
    seen: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name in seen or name in WITHOUT_EFFECT:
            continue
        imports, digest = _read(name)
        seen[name] = digest
        pending += imports
    text = "\n".join(f"{name} {seen[name]}" for name in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _expand(module: str) -> list[str]:
    if not module.endswith(".*"):
        return [module]
    package = module.removesuffix(".*")
    folder = _file(package).parent
    return [package, *(f"{package}.{p.stem}" for p in folder.glob("*.py") if p.stem != "__init__")]


def _file(module: str) -> Path:
    base = ROOT.joinpath(*module.split(".")[1:])
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if module.split(".")[0] == PACKAGE and candidate.is_file():
            return candidate
    raise ModuleNotFoundError(f"{module} is no module of {PACKAGE}")


@cache
def _read(module: str) -> tuple[tuple[str, ...], str]:
    path = _file(module)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(a.name for a in node.names if a.name.startswith(f"{PACKAGE}."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            base = str(node.module)
            for alias in node.names:
                imports.add(_module_of(base, alias.name))
    imports.discard(PACKAGE)
    stripped = ast.dump(_Bare().visit(tree), annotate_fields=False)
    return tuple(sorted(imports)), hashlib.sha256(stripped.encode()).hexdigest()


def _module_of(base: str, name: str) -> str:
    try:
        _file(f"{base}.{name}")
    except ModuleNotFoundError:
        return base
    return f"{base}.{name}"


class _Bare(ast.NodeTransformer):
    """Drop what does not compute: docstrings, annotations, log calls."""

    def _body(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body = [s for s in getattr(node, "body", []) if not _idle(s)]
        node.body = body or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    visit_Module = visit_ClassDef = _body  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _idle(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == "log"
    )
