"""The version of a computation, read off its source.

Snakemake reruns a job when its parameters change, but does not see edits in a library. So the key
of each job holds the version of the code that computes its result: a hash over the syntax trees of
the definitions that can be reached from where the computation starts, and of no others. The code
is read, never imported.

What counts
    Functions, classes and constants that are reached: by name, as attributes of imported modules,
    as base classes, decorators and defaults; and classes that annotations name, since the methods
    of what is given may be called. What makes the objects that an entry is given must be an entry
    itself. Of a class, all of it. Of each module with such a definition also what importing it
    does: calls, registrations by decorators, assignments to what is not its own. A module that is
    used in any way but ``module.name`` counts whole, and so does what cannot be traced. Modules
    imported by a name made at run time (`import_module`) are those of the folder of the one that
    does so; what importing them does counts.

What does not
    Comments, formatting, docstrings, annotations (but those of classes with bases: pydantic and
    NamedTuple read them), ``if TYPE_CHECKING``, log calls, `warnings.warn`, messages of assert,
    what errors are made of (that they are raised, and their class, counts), the arguments of
    `Progress`, and the `WORDS` handed to functions of ours; whatever is used by these alone; and
    the modules `WITHOUT_EFFECT`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

PACKAGE = "layerwise"
ROOT = Path(__file__).parents[1]

# What these know cannot change a value: how errors read, where logs go, how files are replaced,
# which job runs where. Settings are in a job's key themselves. Names of folders cover all in them.
WITHOUT_EFFECT = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        *("errors", "cli", "progress", "files", "tables", "paths", "workflow", "config"),
        *("models.devices", "models.quiet"),
    )
)

# Keywords that hold a text for people, in calls of functions of ours and of those below. They
# count if the value is anything but a text written there or a constant that holds one.
WORDS = frozenset({"description", "title", "label", "note", "about", "help", "unit"})
# Likewise, where a decorator declares something: a metric.
DECLARED_WORDS = WORDS | {"range", "source"}
TAKE_WORDS = frozenset({"Field", "add_argument", "ArgumentParser"})

LOGS = frozenset({"log", "logger"})
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})

IMPORTERS = frozenset({"import_module", "__import__"})
# They see every name of a module.
WHOLE_MODULE = frozenset({"globals", "eval", "exec"})

# Decorators that do nothing but to what they decorate. Any other may register it somewhere.
PURE = frozenset(
    {
        *("dataclass", "cache", "lru_cache", "cached_property", "wraps", "total_ordering"),
        *("contextmanager", "overload", "final", "runtime_checkable", "unique"),
        *("no_grad", "inference_mode"),
    }
)

# They differ between versions of Python or hold nothing that runs.
SKIPPED = frozenset(
    {"ctx", "kind", "type_comment", "type_ignores", "type_params", "annotation", "returns"}
)
SUITES = frozenset({"body", "orelse", "finalbody"})
# Annotations that say what is a field of a dataclass.
FIELD_KINDS = frozenset({"ClassVar", "InitVar", "KW_ONLY"})

Chain: TypeAlias = tuple[str, ...]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Import: TypeAlias = tuple[str, str | None]


class Symbol(NamedTuple):
    """A definition, or with an empty name what importing the module does."""

    module: str
    name: str


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
    return dict(_versions(entries, words))


def fingerprint(*entries: str, words: bool = False) -> str:
    """Hash of all the code that can be reached, 16 hex digits. See `versions`."""
    return _hash(*(part for pair in _versions(entries, words) for part in pair))


def reachable(*entries: str, words: bool = False) -> dict[str, list[str]]:
    """The names of the definitions that can be reached, module by module.

    What importing a module does has the name ``""``.
    """
    found: dict[str, list[str]] = {}
    for symbol in sorted(_reach(entries, words)):
        found.setdefault(symbol.module, []).append(symbol.name)
    return found


@cache
def _versions(entries: tuple[str, ...], words: bool) -> tuple[tuple[str, str], ...]:
    parts: dict[str, list[str]] = {}
    for symbol in sorted(_reach(entries, words)):
        digest = _read(symbol, words).digest
        parts.setdefault(symbol.module, []).extend((symbol.name, digest))
    return tuple((module, _hash(*of_it)) for module, of_it in parts.items())


def _hash(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _reach(entries: Iterable[str], words: bool) -> set[Symbol]:
    pending = [symbol for entry in entries for symbol in _start(entry)]
    seen: set[Symbol] = set()
    while pending:
        symbol = pending.pop()
        if symbol not in seen and not _idle_module(symbol.module):
            seen.add(symbol)
            pending += _read(symbol, words).uses
    return {s for s in seen if s.name or _read(s, words).digest != _NOTHING}


def _start(entry: str) -> Iterator[Symbol]:
    name, _, wanted = entry.partition(":")
    if name.endswith(".*"):
        for each in _folder(name.removesuffix(".*"), deep=True):
            yield from _start(each)
        return
    module = _module(name)
    if wanted:
        if wanted not in module.definitions and wanted not in module.imports:
            raise AttributeError(f"{name} defines no {wanted!r}")
        yield from _symbols(_members(name, wanted))
        return
    # A text counts where it is used: most are part of messages.
    public = [
        n for n in module.definitions if not n.startswith("_") and not _holds_text(Symbol(name, n))
    ]
    if module.path.name == "__init__.py":
        public += [n for n in module.imports if not n.startswith("_") and n != "annotations"]
    yield Symbol(name, "")
    for each in public:
        yield from _symbols(_members(name, each))


# Modules


@dataclass(frozen=True)
class _Module:
    """The statements of a module, sorted by what they do.

    Attributes
    ----------
    definitions : the statements that define each name
    imports : what each imported name stands for: a module (and no name in it) or a name in one
    typing_imports : likewise, of what is imported for annotations alone
    stars : modules of which everything is imported
    effects : what importing it does, in order; a decorated definition by its name
    """

    name: str
    path: Path
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, list[Import]] = field(default_factory=dict)
    typing_imports: dict[str, list[Import]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    effects: list[ast.stmt | str] = field(default_factory=list)

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def names(self) -> set[str]:
        """All names that stand in it, in annotations too."""
        statements = [s for found in self.definitions.values() for s in found]
        statements += [s for s in self.effects if isinstance(s, ast.stmt)]
        return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}

    def add(self, statement: ast.stmt) -> None:
        """Sort in a statement."""
        match statement:
            case ast.Import() | ast.ImportFrom():
                for name, found in _imported(statement, self.package):
                    if name == "*":
                        self.stars.append(found[0])
                    else:
                        self.imports.setdefault(name, []).append(found)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.definitions.setdefault(statement.name, []).append(statement)
                if _registers(statement):
                    self.effects.append(statement.name)
            case ast.Assign(value=ast.Call() as call) if _logs(call):
                pass
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                names = _assigned(statement)
                for name in names or ():
                    self.definitions.setdefault(name, []).append(statement)
                if names is None:
                    self.effects.append(statement)
                elif any(self._ours(call) for call in _calls(statement.value)):
                    self.effects.extend(names[:1])
            case ast.If(orelse=orelse) if _type_checking(statement):
                for each in statement.body:
                    if isinstance(each, ast.Import | ast.ImportFrom):
                        for name, found in _imported(each, self.package):
                            self.typing_imports.setdefault(name, []).append(found)
                for each in orelse:
                    self.add(each)
            case _ if type(statement).__name__ == "TypeAlias":
                name = statement.name.id  # type: ignore[attr-defined]
                self.definitions.setdefault(name, []).append(statement)
            case _ if not _idle(statement):
                self.effects.append(statement)
                for node in ast.walk(statement):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        self.add(node)
                    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self.definitions.setdefault(node.id, []).append(statement)
                    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                        self.definitions.setdefault(node.name, []).append(statement)

    def _ours(self, call: ast.Call) -> bool:
        """Whether it calls a function of ours, which may keep what it is given."""
        chain = _chain(call.func)
        if not chain or chain[-1][:1].isupper():
            return False
        if chain[0] in self.definitions:
            return True
        modules = [module for module, _ in self.imports.get(chain[0], ())]
        return any(_in_package(m) and not _idle_module(m) for m in modules)


@cache
def _module(name: str) -> _Module:
    path = _file(name)
    if path is None:
        raise ModuleNotFoundError(f"{name} is no module of {PACKAGE}")
    module = _Module(name, path)
    for statement in ast.parse(path.read_bytes()).body:
        module.add(statement)
    return module


@cache
def _file(module: str) -> Path | None:
    first, *rest = module.split(".")
    base = ROOT.joinpath(*rest)
    candidates = (base / "__init__.py", base.with_suffix(".py") if rest else base)
    return next((c for c in candidates if first == PACKAGE and all(rest) and c.is_file()), None)


def _folder(package: str, *, deep: bool = False) -> Iterator[str]:
    """The package and the modules in its folder, deeper ones only if asked for."""
    path = _module(package).path
    yield package
    for child in sorted(path.parent.iterdir()) if path.name == "__init__.py" else ():
        if child.suffix == ".py" and child.stem != "__init__":
            yield f"{package}.{child.stem}"
        elif deep and (child / "__init__.py").is_file():
            yield from _folder(f"{package}.{child.name}", deep=True)


def _in_package(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


@cache
def _idle_module(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:k]) in WITHOUT_EFFECT for k in range(1, len(parts) + 1))


def _imported(
    statement: ast.Import | ast.ImportFrom, package: str
) -> Iterator[tuple[str, Import]]:
    """The names that an import binds and what they stand for."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            name = alias.asname or alias.name.partition(".")[0]
            yield name, (alias.name if alias.asname else name, None)
            if name != alias.name:
                yield alias.name, (alias.name, None)
        return
    base = statement.module or ""
    if statement.level:
        above = package.split(".")
        above = above[: len(above) - statement.level + 1]
        base = ".".join([*above, base] if base else above)
    for alias in statement.names:
        yield alias.asname or alias.name, (base, alias.name)


def _assigned(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[str] | None:
    """The names that it defines; None if it changes something else."""
    targets = [*statement.targets] if isinstance(statement, ast.Assign) else [statement.target]
    names = []
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Name):
            names.append(target.id)
        else:
            return None
    return names


def _calls(value: ast.AST | None) -> Iterator[ast.Call]:
    """The calls in an expression, apart from those in lambdas, which are for later."""
    if value is None or isinstance(value, ast.Lambda):
        return
    if isinstance(value, ast.Call):
        yield value
    for child in ast.iter_child_nodes(value):
        yield from _calls(child)


def _registers(statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether to define it does something besides."""
    for decorator in statement.decorator_list:
        chain = _chain(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if not chain or chain[-1] not in PURE:
            return True
    return isinstance(statement, ast.ClassDef) and (
        bool(statement.keywords)
        or any(isinstance(s, ast.Expr) and not _idle(s) for s in statement.body)
    )


# What names stand for


def _symbols(found: Iterable[Symbol | str]) -> Iterator[Symbol]:
    return (each for each in found if isinstance(each, Symbol))


def _bound(module: str, chain: Chain) -> Iterator[Symbol | str]:
    """What a dotted name of a module stands for: symbols of ours, words for anything else."""
    here = _module(module)
    first, *rest = chain
    if first in here.definitions:
        yield Symbol(module, "")
        yield Symbol(module, first)
    for target in here.imports.get(first, ()):
        yield from _of_import(target, tuple(rest))
    if here.stars and first not in here.definitions and first not in here.imports:
        for star in here.stars:
            if not _in_package(star):
                yield star
            elif _binds(star, first):
                yield from _bound(star, chain)


def _of_import(target: Import, rest: Chain) -> Iterator[Symbol | str]:
    module, name = target
    if not _in_package(module):
        yield f"{module}:{name or ''}"
    elif name is None:
        yield from _of_module(module, rest)
    else:
        yield from _members(module, name, rest)


def _of_module(module: str, rest: Chain) -> Iterator[Symbol | str]:
    """What ``module.a.b`` stands for."""
    if _idle_module(module):
        return
    if not rest:
        yield from _whole(module)
    elif rest[0].startswith("__"):
        yield Symbol(module, "")
    else:
        yield from _members(module, rest[0], rest[1:])


def _members(module: str, name: str, rest: Chain = ()) -> Iterator[Symbol | str]:
    """What the name in a module stands for, which may be a module in its folder."""
    if _idle_module(module):
        return
    inner = f"{module}.{name}"
    if _binds(module, name):
        yield from _bound(module, (name, *rest))
        if rest and _file(inner) is not None:
            yield from _of_module(inner, rest)
    elif _file(inner) is not None:
        yield from _of_module(inner, rest)
    else:
        yield from _whole(module)


def _binds(module: str, name: str) -> bool:
    known = _module(module)
    return (
        name in known.definitions
        or name in known.imports
        or any(_in_package(s) and not _idle_module(s) and _binds(s, name) for s in known.stars)
    )


def _is_module(package: str, name: str) -> bool:
    """Whether a name in a package is the module of that name in its folder."""
    return _file(f"{package}.{name}") is not None and not _binds(package, name)


def _whole(module: str, seen: tuple[str, ...] = ()) -> Iterator[Symbol | str]:
    """All that a module defines or imports from others of ours."""
    if _idle_module(module) or module in seen:
        return
    here = _module(module)
    yield Symbol(module, "")
    for name in here.definitions:
        yield Symbol(module, name)
    targets = [target for found in here.imports.values() for target in found]
    targets += [(star, None) for star in here.stars]
    for target, part in targets:
        if not _in_package(target) or _idle_module(target):
            continue
        if part is None:
            yield from _whole(target, (*seen, module))
        elif _is_module(target, part):
            yield from _whole(f"{target}.{part}", (*seen, module))
        else:
            yield from _members(target, part)


def _classes(symbol: Symbol) -> list[ast.ClassDef]:
    """The classes that a symbol is the name of; none for functions and constants."""
    statements = _module(symbol.module).definitions[symbol.name]
    return [s for s in statements if isinstance(s, ast.ClassDef)]


def _holds_text(symbol: Symbol) -> bool:
    """Whether it is a constant that holds a text."""
    statements = _module(symbol.module).definitions[symbol.name]
    return all(_is_text(getattr(statement, "value", None)) for statement in statements)


def _registers_subclasses(symbol: Symbol) -> bool:
    """Whether a class, or one of ours above it, is told of its subclasses."""
    return any(
        isinstance(s, ast.FunctionDef) and s.name == "__init_subclass__"
        for each in _classes(symbol)
        for s in each.body
    ) or any(_registers_subclasses(base) for base in _bases(symbol))


def _bases(symbol: Symbol) -> Iterator[Symbol]:
    for each in _classes(symbol):
        for chain in filter(None, map(_chain, each.bases)):
            found = _symbols(_bound(symbol.module, chain))
            yield from (s for s in found if s.name and s != symbol)


# Reading a definition


_NOTHING = ""


class _Read(NamedTuple):
    """A definition without what does not count: its hash, and the symbols that it uses."""

    digest: str
    uses: tuple[Symbol, ...]


@cache
def _read(symbol: Symbol, words: bool) -> _Read:
    module = _module(symbol.module)
    if symbol.name:
        return _Reader(module, words).read(module.definitions[symbol.name])
    order = [e for e in module.effects if isinstance(e, str)]
    order += [
        name
        for name in module.definitions
        if any(map(_registers_subclasses, _bases(Symbol(module.name, name))))
    ]
    statements = [e for e in module.effects if isinstance(e, ast.stmt)]
    found = _Reader(module, words).read(statements)
    uses = {*found.uses, *(Symbol(module.name, name) for name in order), *_for_effect(module)}
    digest = _hash(found.digest, *order) if module.effects or order else _NOTHING
    return _Read(digest, tuple(sorted(uses)))


def _for_effect(module: _Module) -> Iterator[Symbol]:
    """Other modules whose import a module needs for no name: for what importing them does."""
    above = module.name.rpartition(".")[0]
    if above:
        yield Symbol(above, "")
    for bound, targets in module.imports.items():
        for target, name in targets:
            # What a package imports, it offers to others, unless these are modules.
            offered = module.path.name == "__init__.py" and name is not None
            for symbol in _imported_modules(target, name):
                if bound not in module.names and not (offered and symbol.module == target):
                    yield symbol


def _imported_modules(target: str, name: str | None) -> Iterator[Symbol]:
    """The module of ours that ``from target import name`` imports, as what importing it does."""
    if not _in_package(target) or _idle_module(target):
        return
    found = f"{target}.{name}" if name is not None and _is_module(target, name) else target
    if not _idle_module(found):
        yield Symbol(found, "")


class _Reader:
    """One walk over a definition: writes down what counts, and which names are used for it."""

    def __init__(self, module: _Module, words: bool) -> None:
        self.module, self.words = module, words
        self.out: list[str] = []
        # One entry a scope: names looked up, with their attributes; names bound; what kind it is.
        self.loaded: list[set[Chain]] = [set()]
        self.stored: list[set[str]] = [set()]
        self.kinds = ["module"]
        self.imports: dict[str, list[Import]] = {}
        self.hints: set[Chain] = set()
        self.declaring = False
        # Modules imported by names that are made at run time, or by one written down.
        self.made_up = self.made_up_used = False
        self.texts: set[str] = set()

    def read(self, statements: Iterable[ast.stmt]) -> _Read:
        """Walk over the statements and find what their names stand for."""
        self._suite(statements)
        uses: set[Symbol] = set()
        chains = sorted(self.loaded[0])
        for chain in chains:
            targets = {*_bound(self.module.name, chain)}
            for target in self.imports.get(chain[0], ()):
                targets.update(_of_import(target, chain[1:]))
            if chain[0] in WHOLE_MODULE:
                targets.update(_whole(self.module.name))
            symbols = {t for t in targets if isinstance(t, Symbol)}
            uses |= symbols
            others = targets - symbols
            named = {":".join(t) for t in symbols if t.name} | {str(t) for t in others}
            self.out += [f"{'.'.join(chain)}>{name}" for name in sorted(named)]
        uses.update(self._by_importing({chain[0] for chain in chains}))
        for chain in self.hints:
            uses.update(self._hinted(chain))
        return _Read(_hash(*self.out), tuple(sorted(uses)))

    def _by_importing(self, used: set[str]) -> Iterator[Symbol]:
        for bound, targets in sorted(self.imports.items()):
            for module, name in targets:
                if _in_package(module):
                    yield from _imported_modules(module, name)
                elif bound not in used:
                    self.out.append(f"{module}:{name}")
        folders: set[str] = set()
        if self.made_up:
            folders = {self.module.package, *(t for t in self.texts if _file(t) is not None)}
            for chain in self.loaded[0]:
                for target in self.module.imports.get(chain[0], ()):
                    folders.update(s.module for s in _imported_modules(*target))
        for module in sorted({m for folder in folders for m in _folder(folder)}):
            if self.made_up_used:
                yield from _symbols(_whole(module))
            yield Symbol(module, "")

    def _hinted(self, chain: Chain) -> Iterator[Symbol]:
        """The class of ours that an annotation names: methods of what is given may be called."""
        targets = [*_bound(self.module.name, chain)]
        for imports in (self.imports, self.module.typing_imports):
            for target in imports.get(chain[0], ()):
                targets += _of_import(target, chain[1:])
        for symbol in _symbols(targets):
            if symbol.name and _classes(symbol):
                yield from (symbol, Symbol(symbol.module, ""))

    # Nodes

    def visit(self, node: ast.AST) -> None:
        """Write down a node and all below it."""
        kind: Any = node.__class__
        special = _SPECIAL.get(kind)
        if special is not None:
            special(self, node)
            return
        self.out.append(kind.__name__)
        for name in _fields(kind):
            value = getattr(node, name, None)
            if name in SUITES and isinstance(value, list):
                self._suite(value)
            else:
                self._value(value)

    def _value(self, value: Any) -> None:
        if isinstance(value, ast.AST):
            self.visit(value)
        elif isinstance(value, list):
            self.out.append("[")
            for each in value:
                self._value(each)
            self.out.append("]")
        else:
            self.out.append("-" if value is None else str(value))

    def _suite(self, statements: Iterable[ast.stmt]) -> None:
        self.out.append("[")
        for statement in statements:
            if not _idle(statement):
                self.visit(statement)
        self.out.append("]")

    def _enter(self, kind: str) -> None:
        self.kinds.append(kind)
        self.loaded.append(set())
        self.stored.append(set())

    def _leave(self) -> None:
        """Close a scope: what it does not bind is looked up outside."""
        loaded, stored = self.loaded.pop(), self.stored.pop()
        if self.kinds.pop() == "function":
            loaded = {chain for chain in loaded if chain[0] not in stored}
        self.loaded[-1] |= loaded

    def _name(self, node: ast.Name) -> None:
        self.out.append(f"Name {node.id}")
        if isinstance(node.ctx, ast.Load):
            self.loaded[-1].add((node.id,))
        else:
            self.stored[-1].add(node.id)

    def _attribute(self, node: ast.Attribute) -> None:
        chain = _chain(node)
        if chain:
            self.out.append(f"Name {'.'.join(chain)}")
            self.loaded[-1].add(chain)
        else:
            self.out.append(f"Attribute {node.attr}")
            self.visit(node.value)

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            self.out.append(f"str {value}")
            if value.startswith(f"{PACKAGE}."):
                self.texts.add(value)
        else:
            text = hex(value) if type(value) is int else repr(value)
            self.out.append(f"{type(value).__name__} {text}")

    def _joined(self, node: ast.JoinedStr) -> None:
        # Versions of Python cut the fixed parts up differently.
        self.out.append("f-string")
        text = ""
        for part in [*node.values, None]:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            if text:
                self.out.append(f"str {text}")
                text = ""
            if isinstance(part, ast.FormattedValue):
                self.out.append(f"value {part.conversion}")
                self.visit(part.value)
                if isinstance(part.format_spec, ast.JoinedStr) and part.format_spec.values:
                    self.visit(part.format_spec)
        self.out.append("end")

    def _function(self, node: Function) -> None:
        self.out.append(type(node).__name__)
        if not isinstance(node, ast.Lambda):
            self.out.append(node.name)
            self.stored[-1].add(node.name)
            self._decorators(node)
        arguments = node.args
        self._value([*arguments.defaults, "|", *arguments.kw_defaults])
        self._enter("function")
        for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
            self._value([each.arg for each in group])
            for each in group:
                self._hint(each.annotation)
            self.stored[-1].update(each.arg for each in group)
        for single in (arguments.vararg, arguments.kwarg):
            self._value(single and single.arg)
            if single is not None:
                self.stored[-1].add(single.arg)
                self._hint(single.annotation)
        if isinstance(node, ast.Lambda):
            self.visit(node.body)
        else:
            self._suite(node.body)
        self._leave()

    def _class(self, node: ast.ClassDef) -> None:
        self.out += [type(node).__name__, node.name]
        self.stored[-1].add(node.name)
        self._decorators(node)
        self._value([*node.bases, *node.keywords])
        read = any(not _error_name(_chain(base)) for base in node.bases)
        self._enter("class read by its base" if read else "class")
        self._suite(node.body)
        self._leave()

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.declaring = True
        self._value(node.decorator_list)
        self.declaring = False

    def _comprehension(self, node: Comprehension) -> None:
        self.out.append(type(node).__name__)
        self.visit(node.generators[0].iter)
        self._enter("function")
        for k, generator in enumerate(node.generators):
            self._value([generator.target, *([generator.iter] if k else []), *generator.ifs])
            self._value(generator.is_async)
        for name in ("elt", "key", "value"):
            self._value(getattr(node, name, None))
        self._leave()

    def _global(self, node: ast.Global) -> None:
        # Looked up as an attribute of nothing, so that no scope takes it for its own.
        self._value(["Global", *node.names])
        self.loaded[0].update((name,) for name in node.names)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name, found in _imported(node, self.module.package):
            self.imports.setdefault(name, []).append(found)

    def _expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and self._imports_by_name(node.value, used=False):
            self._value(node.value.args)
        else:
            self.visit(node.value)

    def _assign(self, node: ast.Assign) -> None:
        self.out.append("Assign")
        value, target = node.value, node.targets[0]
        if isinstance(value, ast.Call) and isinstance(target, ast.Name):
            modules = self._known_modules(value)
            if modules:
                self.imports.setdefault(target.id, []).extend((m, None) for m in modules)
                self.out.append(f"{target.id} is {' '.join(modules)}")
                return
        self._value(node.targets)
        self.visit(value)

    def _hint(self, annotation: ast.expr | None) -> None:
        for part in ast.walk(annotation) if annotation is not None else ():
            if isinstance(part, ast.Name | ast.Attribute):
                self.hints.add(_chain(part) or ("",))

    def _annotated(self, node: ast.AnnAssign) -> None:
        scope = self.kinds[-1]
        if scope != "module":
            self._hint(node.annotation)
        if not scope.startswith("class"):
            if node.value is not None:
                self.out.append("Assign")
                self._value([node.target])
                self.visit(node.value)
            return
        self.out.append("Field")
        self.visit(node.target)
        if scope == "class read by its base":
            self.visit(node.annotation)
        else:
            kinds = {n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name)}
            self._value(sorted(kinds & FIELD_KINDS))
        self._value(node.value)

    def _call(self, node: ast.Call) -> None:
        chain = _chain(node.func)
        self._imports_by_name(node, used=True)
        self.out.append("Call")
        self.visit(node.func)
        if chain and (chain[-1] == "Progress" or self._is_error(chain)):
            return
        takes = self._takes_words(chain)
        self._value(node.args)
        self._value([k for k in node.keywords if not (takes and self._is_words(k))])

    def _takes_words(self, chain: Chain) -> bool:
        if self.words or not chain:
            return False
        if chain[-1] in TAKE_WORDS or chain[0] in self.module.definitions:
            return True
        targets = (*self.module.imports.get(chain[0], ()), *self.imports.get(chain[0], ()))
        return any(_in_package(module) for module, _ in targets)

    def _is_words(self, keyword: ast.keyword) -> bool:
        names = DECLARED_WORDS if self.declaring else WORDS
        if keyword.arg not in names:
            return False
        if _is_text(keyword.value):
            return True
        chain = _chain(keyword.value)
        found = [*_symbols(_bound(self.module.name, chain))] if chain else []
        constants = [s for s in found if s.name]
        return bool(constants) and all(map(_holds_text, constants))

    def _is_error(self, chain: Chain) -> bool:
        if not _error_name(chain):
            return False
        found = [s for s in _symbols(_bound(self.module.name, chain)) if s.name]
        return all(
            any(_error_name(_chain(base)) for each in _classes(symbol) for base in each.bases)
            for symbol in found
        )

    def _imports_by_name(self, call: ast.Call, *, used: bool) -> bool:
        """Note an import of a module whose name is made at run time."""
        chain = _chain(call.func)
        if not chain or chain[-1] not in IMPORTERS:
            return False
        known = self._known_modules(call)
        if known:
            self.imports.setdefault("", []).extend((m, None) for m in known)
            if used:
                self.loaded[-1].add(("",))
        else:
            self.made_up = True
            self.made_up_used |= used
        return True

    def _known_modules(self, call: ast.Call) -> list[str]:
        """The modules of ours that an import by name can mean, if they stand there."""
        chain = _chain(call.func)
        if not chain or chain[-1] not in IMPORTERS or not call.args:
            return []
        given = call.args[0]
        own = {"__package__": self.module.package, "__name__": self.module.name}
        found = []
        for part in given.values if isinstance(given, ast.BoolOp) else [given]:
            if isinstance(part, ast.Name) and part.id in own:
                found.append(own[part.id])
            elif isinstance(part, ast.Constant) and _file(str(part.value)) is not None:
                found.append(str(part.value))
            else:
                return []
        return found

    def _raise(self, node: ast.Raise) -> None:
        self.out.append("Raise")
        self._value(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)

    def _assert(self, node: ast.Assert) -> None:
        self.out.append("Assert")
        self.visit(node.test)

    def _if(self, node: ast.If) -> None:
        if _type_checking(node):
            self._suite(node.orelse)
            return
        self.out.append("If")
        self.visit(node.test)
        self._suite(node.body)
        self._suite(node.orelse)


_SPECIAL: dict[type[ast.AST], Callable[[_Reader, Any], None]] = {
    ast.Name: _Reader._name,
    ast.Attribute: _Reader._attribute,
    ast.Constant: _Reader._constant,
    ast.JoinedStr: _Reader._joined,
    ast.FunctionDef: _Reader._function,
    ast.AsyncFunctionDef: _Reader._function,
    ast.Lambda: _Reader._function,
    ast.ClassDef: _Reader._class,
    ast.ListComp: _Reader._comprehension,
    ast.SetComp: _Reader._comprehension,
    ast.DictComp: _Reader._comprehension,
    ast.GeneratorExp: _Reader._comprehension,
    ast.Global: _Reader._global,
    ast.Import: _Reader._import,
    ast.ImportFrom: _Reader._import,
    ast.Expr: _Reader._expression,
    ast.Assign: _Reader._assign,
    ast.AnnAssign: _Reader._annotated,
    ast.Call: _Reader._call,
    ast.Raise: _Reader._raise,
    ast.Assert: _Reader._assert,
    ast.If: _Reader._if,
}


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The parts of a kind of node that count."""
    return tuple(name for name in kind._fields if name not in SKIPPED)


def _chain(node: ast.AST | None) -> Chain:
    """``a.b.c`` as its parts; empty for anything but names and their attributes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()


def _error_name(chain: Chain) -> bool:
    return bool(chain) and chain[-1].endswith(("Error", "Exception"))


def _is_text(node: ast.AST | None) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) and _is_text(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _type_checking(statement: ast.If) -> bool:
    return _chain(statement.test)[-1:] == ("TYPE_CHECKING",)


def _idle(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but say something."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.If) and not any(True for _ in _calls(statement.test)):
        return all(map(_idle, (*statement.body, *statement.orelse)))
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _logs(value))


def _logs(call: ast.Call) -> bool:
    """``log.info(…)``, ``logging.getLogger(…).setLevel(…)``, ``warnings.warn(…)``."""
    if _chain(call.func) == ("warnings", "warn"):
        return True
    root: ast.AST = call.func
    while isinstance(root, ast.Attribute | ast.Call):
        root = root.value if isinstance(root, ast.Attribute) else root.func
    if not isinstance(root, ast.Name) or not isinstance(call.func, ast.Attribute):
        return False
    return root.id == "logging" or (root.id in LOGS and call.func.attr in LEVELS)
