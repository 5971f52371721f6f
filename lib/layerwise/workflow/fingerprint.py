"""The version of a computation, read off its source.

Snakemake does not see edits in a library. So the key of each job holds the version of the code
that computes its result: a hash of the definitions that can be reached from where the computation
starts. The code is read, never imported.

What is reached
    A definition reaches every definition of its module, and of the modules of ours that it uses,
    whose name stands in it, as a name or as an attribute: more than it can call, never less. An
    annotation reaches the classes that it names, as their methods may be called. What makes the
    objects that an entry is given must be an entry itself. Of each module that is reached, and of
    those that it imports, what importing it does counts too: calls, registering decorators,
    assignments to what is not its own. A module that is handed on counts whole, and so do all in
    the folder of a function that imports modules by names made at run time.

What does not count
    Comments, formatting, docstrings, annotations (but those of classes with bases: pydantic and
    NamedTuple read them), ``if TYPE_CHECKING``, log calls, `warnings.warn`, messages of assert,
    what errors are made of (that they are raised, and their class, counts), the arguments of
    `Progress`, and the `WORDS` handed to functions of ours; whatever is used by these alone; and
    the modules `WITHOUT_EFFECT`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

PACKAGE = "layerwise"
ROOT = Path(__file__).parents[1]

# What these know cannot change a value: how errors read, where logs go, how files are replaced,
# which job runs where. Settings are in a job's key themselves. Names of folders cover all in them.
WITHOUT_EFFECT = {
    f"{PACKAGE}.{name}"
    for name in (
        *("errors", "cli", "progress", "files", "tables", "paths", "workflow", "config"),
        *("models.devices", "models.quiet"),
    )
}

# Keywords that hold a text for people, in calls of functions of ours and of those below, and
# where a metric is declared. They count if the value is anything but a text written there.
WORDS = {"description", "title", "label", "note", "about", "help", "unit"}
METRIC_WORDS = WORDS | {"range", "source"}
TAKE_WORDS = {"Field", "add_argument", "ArgumentParser"}
# Whatever they are called with is text for people.
SPEAKING = ("Error", "Exception", "Progress")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
# Decorators that do nothing but to what they decorate. Any other may register it somewhere.
PURE = {"dataclass", "cache", "contextmanager", "no_grad", "inference_mode"}
# They differ between versions of Python or hold nothing that runs.
SKIPPED = {"ctx", "kind", "type_comment", "type_params", "returns"}

# A module and what it defines: with an empty name, what importing it does.
Symbol: TypeAlias = tuple[str, str]
# A module and a name in it; no name for the module itself.
Import: TypeAlias = tuple[str, str | None]
# Likewise, and whether a module counts whole: it is used in any way but ``module.name``.
Used: TypeAlias = tuple[str, str | None, bool]


def versions(*entries: str, words: bool = False) -> dict[str, str]:
    """Hash of the code that can be reached, module by module.

    Parameters
    ----------
    entries : str
        Where the computation starts: ``"layerwise.activations.extract"`` for all that is public
        in a module (texts only where they are used), ``"layerwise.metrics.table:compute"`` for
        one definition, ``"layerwise.figures.*"`` for every module of a folder and of those in it.
    words : bool
        Whether `WORDS` count: for figures, which show them.

    Returns
    -------
    dict
        From the names of modules, sorted, to 16 hex digits.

    Raises
    ------
    ModuleNotFoundError, AttributeError
        If there is no such module or definition.
    """
    found = reachable(*entries, words=words)
    return {
        module: _hash(f"{name} {_read((module, name), words)[0]}" for name in names)
        for module, names in found.items()
    }


def fingerprint(*entries: str, words: bool = False) -> str:
    """Hash of all the code that can be reached, 16 hex digits. See `versions`."""
    return _hash(f"{m} {digest}" for m, digest in versions(*entries, words=words).items())


def state_of_files() -> str:
    """Hash of the names, sizes and times of all files that versions are read from: while it is
    the same, so are they. 16 hex digits."""
    found = ((path, path.stat()) for path in sorted(ROOT.rglob("*.py")))
    return _hash(
        f"{path.relative_to(ROOT)} {state.st_size} {state.st_mtime_ns}" for path, state in found
    )


def reachable(*entries: str, words: bool = False) -> dict[str, list[str]]:
    """The names of the definitions that can be reached, module by module.

    What importing a module does has the name ``""``.
    """
    pending = [symbol for entry in entries for symbol in _start(entry)]
    seen: set[Symbol] = set()
    while pending:
        if (symbol := pending.pop()) not in seen:
            seen.add(symbol)
            pending += _read(symbol, words)[1]
    found: dict[str, list[str]] = {}
    for module, name in sorted(seen):
        if name or _module(module).effects:
            found.setdefault(module, []).append(name)
    return found


def _start(entry: str) -> Iterable[Symbol]:
    name, _, wanted = entry.partition(":")
    known = _module(name.removesuffix(".*")).definitions
    if name.endswith(".*"):
        inside = [module for module in _files() if f"{module}.".startswith(name[:-1])]
        return [symbol for module in inside for symbol in _start(module)]
    if wanted and wanted not in known:
        raise AttributeError(f"{name} defines no {wanted!r}")
    # A text counts where it is used: most are part of messages.
    public = [n for n, found in known.items() if n[0] != "_" and not _holds_text(found[-1])]
    return [(name, each) for each in ([wanted] if wanted else ["", *public])]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _files() -> dict[str, Path]:
    """Every module of ours whose code counts, by name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        *folders, stem = path.relative_to(ROOT).with_suffix("").parts
        parts = [PACKAGE, *folders, *([stem] if stem != "__init__" else [])]
        if WITHOUT_EFFECT.isdisjoint(".".join(parts[:k]) for k in range(1, len(parts) + 1)):
            found[".".join(parts)] = path
    return found


class _Module:
    """The statements of a module, sorted by what they do."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        # The statements that define each name.
        self.definitions: dict[str, list[ast.stmt]] = {}
        # What each imported name stands for, wherever in the module it is imported.
        self.imports: dict[str, set[Import]] = {}
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for bound, target in _imported(node, self.package):
                    self.imports.setdefault(bound, set()).add(target)
        # What importing the module does.
        self.effects = [s for s in tree.body if not _idle(s) and not self._defines(s)]

    def _defines(self, statement: ast.stmt) -> bool:
        """Keep a definition by its name; whether that is all it does."""
        targets: list[ast.expr] = []
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.definitions.setdefault(statement.name, []).append(statement)
                return all(_chain(d)[-1] in PURE for d in statement.decorator_list)
            case ast.Assign():
                targets = [t for each in statement.targets for t in getattr(each, "elts", [each])]
            case ast.AnnAssign() | ast.AugAssign():
                targets = [statement.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            self.definitions.setdefault(name, []).append(statement)
        # A function of ours may keep what it is given.
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and self.is_ours(n)]
        kept = [call for call in calls if not _chain(call)[-1][:1].isupper()]
        return bool(names) and len(names) == len(targets) and not kept

    def is_ours(self, call: ast.Call) -> bool:
        """Whether a function of ours is called."""
        first = _chain(call)[0]
        modules = [module for module, _ in self.imports.get(first, ())]
        return first in self.definitions or any(m.startswith(PACKAGE) for m in modules)


@cache
def _module(name: str) -> _Module:
    if name not in _files():
        raise ModuleNotFoundError(f"{name} is no module of {PACKAGE} that counts")
    return _Module(name, _files()[name])


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Import]]:
    """The names that an import binds and what they stand for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, None)
    else:
        above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            yield alias.asname or alias.name, (base, alias.name)


def _resolved(pending: list[Used], names: set[str]) -> Iterator[Symbol]:
    """The definitions that can be meant, if these names stand beside those of modules."""
    seen = set()
    while pending:
        module, name, whole = used = pending.pop()
        if used in seen or module not in _files():
            continue
        seen.add(used)
        yield module, ""
        known = _module(module)
        bound = known.definitions.keys() | known.imports.keys()
        if name is None:
            inside = {n for n in names if n in bound or f"{module}.{n}" in _files()}
            inside |= bound if whole or "__getattr__" in bound else set()
            pending += [(module, n, False) for n in inside]
        elif name in bound:
            if name in known.definitions:
                yield module, name
            pending += [(*target, whole) for target in known.imports.get(name, ())]
        else:
            inner = f"{module}.{name}"
            pending.append((inner, None, whole) if inner in _files() else (module, None, True))


@cache
def _read(symbol: Symbol, words: bool) -> tuple[str, set[Symbol]]:
    """The hash of a definition without what does not count, and the symbols that it uses."""
    module = _module(symbol[0])
    reader = _Reader(module, words)
    reader.write(module.definitions[symbol[1]] if symbol[1] else module.effects)
    imported = {name: sorted(module.imports[name], key=str) for name in sorted(module.imports)}
    reader.out += [f"{name}: {found}" for name, found in imported.items() if name in reader.names]

    names = reader.names | reader.hints
    used: list[Used] = [(module.name, n, False) for n in names & module.definitions.keys()]
    for name in names & imported.keys():
        used += [(*target, name in reader.alone) for target in imported[name]]
    if "import_module" in reader.attributes | names:
        folder = [m for m in _files() if m.rpartition(".")[0] == module.package]
        used += [(m, None, True) for m in folder]
    uses = {(module.name, ""), *_resolved(used, names | reader.attributes)}
    if not symbol[1]:
        # Importing a module imports those above it and all that it names, for what that does.
        named: list[Used] = [(*target, False) for found in imported.values() for target in found]
        named.append((module.name.rpartition(".")[0], None, False))
        uses |= {(other, "") for other, _ in _resolved(named, set())}
    return _hash(reader.out), uses


class _Reader:
    """A walk over statements: writes down what counts, and which names stand in it."""

    def __init__(self, module: _Module, words: bool) -> None:
        self.module, self.words = module, words
        self.out: list[str] = []
        self.names: set[str] = set()
        self.alone: set[str] = set()  # names without an attribute
        self.attributes: set[str] = set()
        self.hints: set[str] = set()  # names in annotations

    def write(self, node: Any) -> None:
        """Write down a node and all below it."""
        if isinstance(node, list):
            self.out.append("[")
            for each in node:
                self.write(each)
            self.out.append("]")
        elif not isinstance(node, ast.AST):
            self.out.append(ascii(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.names |= {name for name, _ in _imported(node, self.module.package)}
        elif not (isinstance(node, ast.stmt) and _idle(node)):
            self.out.append("Assign" if isinstance(node, ast.AnnAssign) else type(node).__name__)
            self.write(self._parts(node))

    def _parts(self, node: ast.AST) -> list[Any]:
        """What a node is made of, without the words that are its own."""
        match node:
            case ast.Name(id=name):
                self.names.add(name)
                self.alone.add(name)
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                self.names.add(module)
                self.attributes.add(name)
                return [module, name]
            case ast.Attribute(attr=name):
                self.attributes.add(name)
            case ast.Raise(exc=ast.Call(func=func)):
                return [func]
            case ast.Raise(exc=exc):
                return [exc]
            case ast.Assert(test=test):
                return [test]
            case ast.Call(func=func) if _chain(func)[-1].endswith(SPEAKING):
                return [func]
            case ast.Call(func=func, args=args, keywords=keywords):
                return [func, args, [k for k in keywords if not self._is_words(node, k)]]
            case ast.arg(arg=name, annotation=annotation):
                self.hints |= _names(annotation)
                return [name]
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self.hints |= _names(annotation)
                return [[target], value]
            case ast.ClassDef(name=name, bases=bases, keywords=keywords, body=body):
                fields = [s for s in body if isinstance(s, ast.AnnAssign)]
                read = [f.annotation if bases else f.target for f in fields]
                return [name, bases, keywords, node.decorator_list, body, read]
        return [value for name, value in ast.iter_fields(node) if name not in SKIPPED]

    def _is_words(self, call: ast.Call, given: ast.keyword) -> bool:
        """Whether an argument is a text for people alone."""
        name = _chain(call)[-1]
        known = METRIC_WORDS if name == "metric" else WORDS
        takes = name in TAKE_WORDS or self.module.is_ours(call)
        return not self.words and given.arg in known and takes and _holds_text(given)


def _chain(node: ast.AST) -> tuple[str, ...]:
    """``a.b.c`` or ``a.b.c(…)`` as its parts; an empty text for anything else."""
    node, parts = node.func if isinstance(node, ast.Call) else node, []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ("",)


def _names(node: ast.AST | None) -> set[str]:
    """All names and attributes in an expression."""
    parts = ast.walk(node) if node is not None else ()
    return {getattr(n, "id", getattr(n, "attr", "")) for n in parts}


def _holds_text(node: ast.AST) -> bool:
    """Whether a constant, or what is given for a keyword, is a text written there."""
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing: it says or imports something, or names a log."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=test, body=body, orelse=orelse):
            calls = any(isinstance(n, ast.Call) for n in ast.walk(test))
            return not calls and all(map(_idle, [*body, *orelse]))
        case ast.Expr(value=ast.Call(func=func)) | ast.Assign(value=ast.Call(func=func)):
            chain = _chain(func)
            said = chain[0] in ("log", "logger") and chain[-1] in LEVELS
            return said or chain == ("warnings", "warn") or "logging" in _names(func)
    return False
