"""Versions of computations: what changes them and what does not."""

from __future__ import annotations

import ast
import copy
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from layerwise.workflow import fingerprint as module
from layerwise.workflow.fingerprint import fingerprint, reachable, versions

SOURCE = ROOT / "lib" / "layerwise"
EXTRACT = ("layerwise.activations.extract:extract", "layerwise.models.load:load")
METRICS = ("layerwise.metrics.table:compute",)
EVERYTHING = "layerwise.*"


def forget() -> None:
    for each in vars(module).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package in place of ours."""
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of ours that can be edited."""
    folder = tmp_path / "layerwise"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "ROOT", folder)
    forget()
    yield folder
    forget()


def of(folder: Path, *entries: str, words: bool = False, **files: str) -> dict[str, str]:
    """The versions with these modules (``a__b`` is a/b.py)."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        if name.endswith("___init"):
            path = folder / name.removesuffix("___init") / "__init__.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    forget()
    return versions(*(entries or ("layerwise.high",)), words=words)


# One definition

BASE = '''
import logging
from dataclasses import dataclass
import numpy as np
from layerwise import low
from layerwise.errors import LayerwiseError
from layerwise.progress import Progress
log = logging.getLogger(__name__)
REMEDY = "do it again"
LIMIT = 3
@dataclass(frozen=True)
class Box:
    """Holds."""
    size: int = 4
    def grow(self, by: float = 0.5) -> float:
        return self.size * by
def _said(x):
    return f"{x} came"
def _twice(x):
    return LayerwiseError(f"{x} came twice")
def g(x: int, k=2) -> "int":
    """Doc."""
    if x > LIMIT:
        raise LayerwiseError(f"{_said(x)}; {REMEDY}") from None
    assert x, "no x"
    if x == LIMIT:
        raise _twice(x + 5)
    with Progress(k, f"{x} of them"):
        pass
    kept = [x for x in range(k) if x % 2 == 0]
    log.info("%s", x)
    return np.sum(low.f(x)) * Box(size=k).grow() + len(kept)
'''
LOW = """
SCALE = 10
NEVER = 1
def f(x, power=2):
    return x ** power / SCALE
def unused(x, power=3):
    return x ** power * NEVER
"""
SAME = [
    ("import logging", "# Why.\nimport logging"),
    ("Doc.", "Other words."),
    ('"""Doc."""', "pass"),
    ('"""Holds."""', '"""Holds more."""'),
    ("x: int, k=2", "x: float, k: int = 2"),
    ('-> "int"', ""),
    ("size: int", "size: 'float'"),
    ("by: float", "by"),
    ("do it again", "do it once more"),
    (' came"', ' was given"'),
    (" came twice", " was given twice"),
    ("x + 5", "x"),
    (" of them", " of all"),
    ("; {REMEDY}", " ({k})"),
    (" from None", ""),
    ('"no x"', 'f"{x} is nothing"'),
    ('log.info("%s", x)', 'log.warning("%d of %s", x, k)'),
    ('log.info("%s", x)', 'if x == k:\n        log.info("%s", x)'),
    ("np.sum(low.f(x)) *", "(np.sum(\n        low.f(x),\n    )) *"),
    ("getLogger(__name__)", 'getLogger("x")'),
]
OTHER = [
    ("LIMIT = 3", "LIMIT = 4"),
    ("x > LIMIT", "x >= LIMIT"),
    ("raise LayerwiseError", "raise ValueError"),
    ("return LayerwiseError", "return ValueError"),
    ("raise _twice", "_twice"),
    ("assert x,", "assert not x,"),
    ("k=2", "k=3"),
    ("size: int = 4", "size: int = 5"),
    ("size: int = 4", "size = 4"),
    ("frozen=True", "frozen=False"),
    ("@dataclass(frozen=True)\n", ""),
    ("self.size * by", "self.size / by"),
    ("by: float = 0.5", "by: float = 0.25"),
    ("range(k)", "range(k + 1)"),
    ("np.sum", "np.mean"),
    ("import numpy as np", "import torch as np"),
    ("low.f(x)", "low.unused(x)"),
    ("low.f(x)", "low.f(x, 2)"),
    ("* Box(size=k)", "* Box(k)"),
    ('log.info("%s", x)', "log.append(x)"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_words_and_looks_do_not_count(package: Path, old: str, new: str) -> None:
    before = of(package, high=BASE, low=LOW)
    assert old in BASE
    assert of(package, high=BASE.replace(old, new)) == before


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_what_computes_counts(package: Path, old: str, new: str) -> None:
    before = of(package, "layerwise.high:g", high=BASE, low=LOW)
    assert old in BASE
    assert of(package, "layerwise.high:g", high=BASE.replace(old, new)) != before


def test_only_what_is_reached_counts_in_its_module(package: Path) -> None:
    before = of(package, high=BASE, low=LOW)
    assert sorted(before) == ["layerwise.high", "layerwise.low"]
    for old, new in (("NEVER = 1", "NEVER = 2"), ("power=3", "power=4"), ("* NEVER", "+ NEVER")):
        assert of(package, low=LOW.replace(old, new)) == before
    for old, new in (("SCALE = 10", "SCALE = 9"), ("power=2", "power=4"), ("/ SCALE", "* SCALE")):
        after = of(package, low=LOW.replace(old, new))
        assert {name for name in after if after[name] != before[name]} == {"layerwise.low"}


# What is reached

REACHED = {
    "a name": "from layerwise.low import f\ndef g():\n    return f(1)",
    "an alias": "from layerwise.low import f as h\ndef g():\n    return h(1)",
    "an attribute": "import layerwise.low\ndef g():\n    return layerwise.low.f(1)",
    "a module by another name": "import layerwise.low as l\ndef g():\n    return l.f(1)",
    "a relative import": "from . import low\ndef g():\n    return low.f(1)",
    "another": "from .low import f\ndef g():\n    return f(1)",
    "an import within": "def g():\n    from layerwise.low import f\n    return f(1)",
    "a default": "from layerwise.low import f\ndef g(x=f):\n    return x(1)",
    "a decorator": "from layerwise import low\n@low.f\ndef g():\n    return 1",
    "a constant": "from layerwise.low import f\nK = {'a': f}\ndef g():\n    return K['a'](1)",
    "a method": "from layerwise.low import f\nclass A:\n  def m(self):\n    return f(1)\ng = A",
    "what is attempted": (
        "try:\n    from layerwise.low import f\nexcept ImportError:\n    f = None\n"
        "def g():\n    return f(1)"
    ),
    "a module handed on": "from layerwise import low\ndef g(n):\n    return getattr(low, n)",
    "a name made up": (
        "from importlib import import_module\n"
        "def g(n):\n    return import_module('layerwise.' + n).f(1)"
    ),
    "a name given": (
        "import importlib\ndef g():\n    m = importlib.import_module('layerwise.low')\n"
        "    return m.f(1)"
    ),
    "a lambda": "from layerwise.low import f\ng = lambda x: f(x)",
    "a test of types": "from layerwise.low import f\ndef g(x):\n    return isinstance(x, f)",
    "an error caught": "from layerwise import low\ndef g():\n  try: a()\n  except low.f: pass",
    "a global set": "from layerwise.low import f\nh = f\ndef g():\n    global h\n    h += 1",
}


@pytest.mark.parametrize("how", REACHED)
def test_definitions_are_followed(package: Path, how: str) -> None:
    before = of(package, "layerwise.high:g", high=REACHED[how], low=LOW)
    after = of(package, "layerwise.high:g", low=LOW.replace("power=2", "power=4"))
    assert set(before) >= {"layerwise.high", "layerwise.low"}
    assert {name for name in after if after[name] != before[name]} == {"layerwise.low"}


def test_what_an_init_passes_on_is_followed(package: Path) -> None:
    offers = "from layerwise.parts.one import f\nfrom layerwise.parts.two import h\n"
    high = "from layerwise import parts\ndef g():\n    return parts.f()\n"
    files = {"parts___init": offers, "parts__one": "def f():\n    return 1\n"}
    before = of(package, high=high, parts__two="def h():\n    return 2\n", **files)
    assert sorted(before) == ["layerwise.high", "layerwise.parts.one"]
    assert of(package, parts__two="def h():\n    return 3\n") == before
    assert of(package, parts__one="def f():\n    return 3\n") != before
    swapped = "from layerwise.parts.one import f as h\nfrom layerwise.parts.two import h as f\n"
    assert sorted(of(package, parts___init=swapped)) == ["layerwise.high", "layerwise.parts.two"]


@pytest.mark.parametrize("how", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "])
def test_methods_of_what_is_given_are_followed(package: Path, how: str) -> None:
    high = f"{how}from layerwise.low import Box\ndef g(box: Box | None):\n    return box.size()\n"
    low = "class Box:\n    def size(self):\n        return 1\n"
    before = of(package, high=high, low=low)
    assert of(package, low=low.replace("1", "2")) != before


def test_bases_count_and_so_do_annotations_that_they_read(package: Path) -> None:
    low = "class Base:\n    def size(self):\n        return 1\n"
    high = "from layerwise.low import Base\nclass Box(Base):\n    x: int = 1\n"
    before = of(package, high=high, low=low)
    assert of(package, low=low.replace("1", "2")) != before
    assert of(package, low=low, high=high.replace("int", "float")) != before


def test_what_importing_does_counts(package: Path) -> None:
    low = "KNOWN = {}\ndef known(f):\n    KNOWN[f.__name__] = f\n    return f\n"
    high = "from layerwise import low\ndef g():\n    return low.KNOWN\n\ndef h():\n    return 1\n"
    before = of(package, "layerwise.high:g", high=high, low=low)
    assert of(package, "layerwise.high:g", high=high.replace("1", "2")) == before
    for more in ("@low.known\n", "low.known(len)\n\n", "KEPT = low.known(len)\n\n"):
        text = high.replace("def h", f"{more}def h")
        assert of(package, "layerwise.high:g", high=text) != before
    text = high.replace("\ndef h", "\n@low.known\ndef h")
    before = of(package, "layerwise.high:g", high=text)
    assert of(package, "layerwise.high:g", high=text.replace("1", "2")) != before


def test_all_modules_of_a_folder_count_where_names_are_made_up(package: Path) -> None:
    files = {
        "low___init": (
            "import importlib, pkgutil\ndef load():\n"
            "    for m in pkgutil.iter_modules(__path__):\n"
            "        importlib.import_module(f'{__name__}.{m.name}')\n"
        ),
        "registry": "KNOWN = []\ndef metric(f):\n    KNOWN.append(f)\n    return f\n",
        "low__one": "from layerwise.registry import metric\n@metric\ndef one():\n    return 1\n",
        "tool": "from layerwise.low.one import one\ndef by_hand(n=1):\n    return n\n",
        "high": "def g():\n    from layerwise.low import load\n    return load()\n",
    }
    before = of(package, **files)
    assert {"layerwise.low.one", "layerwise.registry"} < set(before)
    assert of(package, tool=files["tool"].replace("1", "2")) == before
    assert of(package, low__one=files["low__one"].replace("1", "2")) != before


def test_imports_for_their_effect_count(package: Path) -> None:
    high = "import layerwise.low\ndef g():\n    return 1\n"
    before = of(package, high=high, low="import os\nos.environ['A'] = '1'\n")
    assert of(package, low="import os\nos.environ['A'] = '2'\n") != before


def test_words_handed_to_functions_of_ours_count_for_figures_alone(package: Path) -> None:
    high = (
        "from layerwise.low import metric\n"
        "@metric(label='LiDAR', range='0 to 1', note='why', direction=1)\ndef g(x):\n"
        "    return pd.to_datetime(x, unit='s').rolling(label='left')\n"
    )
    low = "def metric(**said):\n    return said\n"
    before, shown = of(package, high=high, low=low), of(package, words=True)
    for old in ("LiDAR", "0 to 1", "why"):
        after = high.replace(old, "another")
        assert of(package, high=after) == before
        assert of(package, high=after, words=True) != shown
    for old, new in (("='s'", "='ms'"), ("'left'", "'right'"), ("direction=1", "direction=2")):
        assert of(package, high=high.replace(old, new)) != before


def test_only_errors_and_progress_have_names_that_take_texts() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
                of_errors = any(base.endswith(("Error", "Exception")) for base in bases)
                assert of_errors == node.name.endswith(("Error", "Exception")), node.name


@pytest.mark.parametrize("name", sorted(module.WITHOUT_EFFECT))
def test_modules_without_effect_exist_and_are_never_reached(name: str) -> None:
    name_there = name.removeprefix("layerwise.").replace(".", "/")
    assert (SOURCE / f"{name_there}.py").is_file() or (SOURCE / name_there).is_dir()
    assert not any(m == name or m.startswith(f"{name}.") for m in versions(EVERYTHING))


def test_modules_without_effect_do_not_count(package: Path) -> None:
    high = "from layerwise.errors import closest\ndef g(x):\n    return closest(x)\n"
    before = of(package, high=high, errors="def closest(x):\n    return 1\n")
    assert of(package, errors="def closest(x):\n    return 2\n") == before


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("layerwise.none", ModuleNotFoundError),
        ("other", ModuleNotFoundError),
        ("layerwise.none.*", ModuleNotFoundError),
        ("layerwise.hdf5:nothing", AttributeError),
    ],
)
def test_entries_that_are_not_there(entry: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"none|other|nothing"):
        versions(entry)


# Our own code


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text, f"{file} has no {old!r}"
    path.write_text(text.replace(old, new))
    forget()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("models/failures.py", "there is no model of the name", "there is no such model:"),
        ("hdf5.py", "delete it and run", "remove it and run"),
        ("metrics/sample_size.py", "repeats: int = 5", "repeats: int = 6"),
        ("progress.py", "60.0", "30.0"),
        ("metrics/catalog/lidar.py", 'label="LiDAR"', 'label="Lidar"'),
        ("metrics/catalog/lidar.py", "Thilak et al. 2024", "Thilak 2024"),
        ("metrics/table.py", "extract again with it", "extract it again"),
    ],
)
def test_a_word_of_ours_changes_no_key(copied: Path, file: str, old: str, new: str) -> None:
    entries = (*EXTRACT, *METRICS, "layerwise.tasks.score:score_task")
    before = versions(*entries)
    edit(copied, file, old, new)
    assert versions(*entries) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "metrics", "extraction"),
    [
        ("metrics/catalog/lidar.py", "        1e-4,\n", "        1e-3,\n", True, False),
        (
            "metrics/catalog/lidar.py",
            "AT_ONCE = 4",
            "AT_ONCE = 5",
            True,
            False,
        ),
        ("metrics/formulas/uncertainty.py", "np.sqrt", "np.cbrt", True, False),
        ("activations/representation.py", "SINK_RATIO = ", "SINK_RATIO = 1 + ", False, True),
        ("models/load.py", "offset = 2", "offset = 1", False, True),
    ],
)
def test_a_formula_of_ours_changes_its_module(
    copied: Path, file: str, old: str, new: str, metrics: bool, extraction: bool
) -> None:
    name = "layerwise." + file.removesuffix(".py").replace("/", ".")
    before = versions(*METRICS), versions(*EXTRACT)
    edit(copied, file, old, new)
    after = versions(*METRICS), versions(*EXTRACT)
    for then, now, expected in zip(before, after, (metrics, extraction), strict=True):
        assert {m for m in now if now[m] != then[m]} == ({name} if expected else set())


@pytest.mark.parametrize(
    ("entry", "file", "old", "new"),
    [
        ("tasks.labelled:texts_of", "vocabulary.py", "WORDS = 10_000", "WORDS = 20_000"),
        ("figures.size_scaling", "models/parameters.py", '"m": 1e6', '"m": 1e3'),
    ],
)
def test_what_rests_in_the_config_counts_where_it_decides_a_value(
    copied: Path, entry: str, file: str, old: str, new: str
) -> None:
    """Code of the config is in no version: what computes must have it from elsewhere."""
    before = versions(f"layerwise.{entry}")
    edit(copied, file, old, new)
    assert versions(f"layerwise.{entry}") != before


# Mutations of our own code: every definition is asked by itself, in the tree that was read.


def definitions() -> Iterator[tuple[str, ast.stmt]]:
    """Every definition of ours as an entry, and its statement."""
    for name, symbols in reachable(EVERYTHING).items():
        for symbol in filter(None, symbols):
            for statement in module._module(name).definitions[symbol]:
                yield f"{name}:{symbol}", statement


def silent(node: ast.AST) -> list[ast.AST]:
    """What below a node is for people alone."""
    match node:
        case ast.Raise(exc=exc, cause=cause):
            found = [*getattr(exc, "args", ()), *getattr(exc, "keywords", ()), cause]
        case ast.Expr(value=ast.Constant() as text):
            found = [text]
        case ast.Expr(value=ast.Call(func=func) as call) if ast.unparse(func).startswith(
            ("log.", "logging.", "warnings.warn")
        ):
            calls = [below for below in ast.walk(call) if isinstance(below, ast.Call)]
            found = [each for below in calls for each in (*below.args, *below.keywords)]
        case ast.If(test=test, body=[ast.Expr() as only], orelse=[]) if silent(only) and not any(
            isinstance(n, ast.Call) for n in ast.walk(test)
        ):
            found = [test]
        case ast.Assert(msg=message):
            found = [message]
        case ast.FunctionDef(returns=annotation) | ast.arg(annotation=annotation):
            found = [annotation]
        case ast.AnnAssign(annotation=annotation):
            found = [annotation]
        case ast.Call(func=ast.Name(id=name)) if name == "Progress" or name.endswith("Error"):
            found = [*node.args, *node.keywords]
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            found = list(node.body)
        case _:
            found = []
    return [each for each in found if each is not None]


def parts(statement: ast.AST) -> list[tuple[ast.AST, bool]]:
    """All nodes, and whether they compute."""
    nodes = list(ast.walk(statement))
    apart = [each for node in nodes for each in silent(node)]
    unheard = {id(below) for each in apart for below in ast.walk(each)}
    return [(node, id(node) not in unheard) for node in nodes]


FLIPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.Is: ast.IsNot,
}  # fmt: skip


def computing() -> list[tuple[str, ast.AST]]:
    """Numbers, operators, calls and results that can be changed."""
    found = []
    for entry, statement in definitions():
        heard = [node for node, computes in parts(statement) if computes]
        known = set(map(id, heard))
        found += [
            (entry, node)
            for node in heard
            if (isinstance(node, ast.Constant) and type(node.value) in (int, float))
            or (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in FLIPPED)
            or (isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED)
            or isinstance(node, ast.Return)
            or (isinstance(node, ast.Call) and id(next(iter(node.args), None)) in known)
        ]
    return found


def change(node: ast.AST) -> None:
    match node:
        case ast.Constant(value=value):
            node.value = value + 1
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            node.op = FLIPPED[type(op)]()
        case ast.Compare(ops=[first, *rest]):
            node.ops = [FLIPPED[type(first)](), *rest]
        case ast.Return(value=value):
            node.value = None if value is not None else ast.Constant(value=1)
        case ast.Call(args=args):
            node.args = args[1:]


def speaking() -> list[tuple[str, ast.AST]]:
    """Texts and annotations that are for people alone.

    Not in classes with bases, which may read annotations; those that name what is ours say what
    is given, whose methods count.
    """
    return [
        (entry, node)
        for entry, statement in definitions()
        if not (isinstance(statement, ast.ClassDef) and statement.bases)
        for parent, heard in parts(statement)
        if heard
        for node in silent(parent)
        if not isinstance(parent, ast.arg | ast.AnnAssign)
        or ast.unparse(node) in ("int", "float", "str", "bool", "Any", "Path")
    ]


def reword(node: ast.AST) -> None:
    """Change every text, number and name."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant):
            each.value = f"another {each.value}"
        elif isinstance(each, ast.Name):
            each.id = f"{each.id}_of_no_account"


def asked_again(entry: str) -> dict[str, str]:
    module._read.cache_clear()
    return versions(entry)


def restored(node: ast.AST, kept: ast.AST) -> None:
    vars(node).update(vars(kept))


def test_a_changed_computation_of_ours_counts() -> None:
    forget()
    places = computing()
    assert len(places) > 5000
    missed = []
    for entry, node in random.Random(1).sample(places, 400):
        before, kept = asked_again(entry), copy.copy(node)
        change(node)
        if asked_again(entry) == before:
            missed.append((entry, ast.unparse(kept)))
        restored(node, kept)
    assert not missed


def test_changed_words_of_ours_do_not_count() -> None:
    forget()
    places = speaking()
    assert len(places) > 1000
    seen = []
    for entry, node in random.Random(2).sample(places, 400):
        before, kept = asked_again(entry), copy.deepcopy(node)
        reword(node)
        if asked_again(entry) != before:
            seen.append((entry, ast.unparse(kept)))
        restored(node, kept)
    assert not seen


def test_formatting_of_ours_does_not_count(copied: Path) -> None:
    before = versions(EVERYTHING)
    for path in copied.rglob("*.py"):
        path.write_text(ast.unparse(ast.parse(path.read_text())))
    forget()
    assert versions(EVERYTHING) == before


# Machines


def test_the_tables_of_metrics_count_every_metric() -> None:
    files = {path.stem for path in (SOURCE / "metrics" / "catalog").glob("[!_]*.py")}
    reached = reachable(*METRICS)
    assert len(files) > 10
    for file in files:
        assert reached[f"layerwise.metrics.catalog.{file}"][0] == ""  # it registers its metrics
    assert {f"layerwise.metrics.formulas.{f}" for f in ("entropy", "spectra")} < set(reached)


def test_it_reads_and_never_runs(package: Path) -> None:
    assert of(package, high="raise SystemExit('was run')\ndef g():\n    return 1\n")


def test_every_process_and_python_gives_the_same() -> None:
    code = (
        "from layerwise.workflow.fingerprint import fingerprint;"
        f"print(fingerprint({EVERYTHING!r}), fingerprint({EVERYTHING!r}, words=True))"
    )
    expected = f"{fingerprint(EVERYTHING)} {fingerprint(EVERYTHING, words=True)}"
    pythons = [sys.executable, *filter(None, map(shutil.which, ("python3.12", "python3.13")))]
    for seed, python in enumerate(pythons):
        environment = {"PYTHONPATH": str(ROOT / "lib"), "PYTHONHASHSEED": str(seed), "PATH": ""}
        said = subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        if python == sys.executable or said.returncode == 0:
            assert said.stdout.strip() == expected, said.stderr
