"""Commands on runs of the workflow, such as `new` and `run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from layerwise import addons
from layerwise.cli.options import TEXT_FILES, figure_file, say
from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from layerwise.run.plan import Plan

app = typer.Typer()

CONFIG = Annotated[Path, Option("--config", "-c", help="The config.")]
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=EXTRA)
def run(
    context: typer.Context,
    config: CONFIG = Path("config.yaml"),
    cores: Annotated[int, Option(min=1, help="CPU cores that jobs may use.")] = 2,
    verbose: Annotated[bool, Option("--verbose", help="Show Snakemake's own output.")] = False,
    resubmit: Annotated[
        bool, Option("--resubmit", help="Start though SLURM has jobs of a run that was killed.")
    ] = False,
) -> None:
    """Run the workflow on a config. Files that are up to date are not made again.

    Further options are passed to snakemake: layerwise run -c mine.yaml --dry-run. Its -C changes
    keys of the config: layerwise run -C 'extract={threads: 4}'
    """
    progress = [] if verbose else ["--logger", "layerwise"]
    arguments = [*progress, "--cores", str(cores), *context.args]
    results = Path(run_snakemake(config, *arguments, resubmit=resubmit).config.results)
    if context.args:
        return
    from layerwise.io import tables
    from layerwise.run.report import shown

    best = results / "report" / "best_layers.csv"
    if best.is_file():
        say(shown(tables.read_any(best)).to_string(index=False))
    addons.load("stages")
    pages = ["report.html", *(page for s in addons.STAGES.values() for page in s.outputs)]
    say(f"Figures and tables: {', '.join(f'{results}/{page}' for page in pages)}.")


@app.command()
def fetch(config: CONFIG = Path("config.yaml")) -> None:
    """Download the models and data sets of a run, for machines without internet.

    Start it again to go on; what is there is not downloaded twice.

    Example: layerwise fetch --config presets/pythia_sweep.yaml
    """
    from layerwise.run.fetch import fetch as fetch_all
    from layerwise.run.validate import read_valid
    from layerwise.section import read_yaml

    n = fetch_all(read_valid(read_yaml(config), [config]))
    say(f"The caches have all {n} models at a revision and data sets.")


@app.command()
def plot(
    results: Annotated[Path, Argument(help="A results folder.")],
    kind: Annotated[str, Argument(help="A kind of figure, or a study of the run.")],
    output: Annotated[
        Path | None, Option(help="File to write (default: KIND.png).", callback=figure_file)
    ] = None,
) -> None:
    """Draw one figure of a run.

    Example: layerwise plot results score_by_depth
    """
    import layerwise

    target = output or Path(f"{kind}.png")
    layerwise.open(results).plot(kind).savefig(target)
    say(f"{target} is written.")


def run_snakemake(config: Path, *arguments: str, resubmit: bool = False) -> Plan:
    """Run Snakemake on a config and return its plan; end with Snakemake's status if it fails.

    Keys that the arguments change by -C count in the plan, too. What a killed run locked is
    unlocked, unless jobs of it are left on a cluster.
    """
    from layerwise.project import SNAKEFILE, require
    from layerwise.run.snakemake import RUNNING, Survey, last_run_was_killed, queued_jobs
    from layerwise.run.validate import read_valid
    from layerwise.section import read_yaml

    require("snakemake", "workflow")
    options = ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("-C", nargs="+")
    options.add_argument("--configfile", "--configfiles", action="store_true")
    asked, _ = options.parse_known_args(arguments)
    if asked.configfile:
        raise LayerwiseError("Give one config, by --config.", code="conflict")
    for word in arguments:
        if word.endswith((".yaml", ".yml")):
            raise LayerwiseError(f"If {word} is the config, write -c {word}.", code="conflict")
    document = read_yaml(config)
    if asked.C:
        from snakemake.cli import parse_config
        from snakemake.utils import update_config

        try:
            update_config(document, parse_config(asked.C))
        except ValueError as error:
            raise LayerwiseError(f"-C: {error}") from None
    plan = read_valid(document, [config])
    survey = Survey(plan)
    if warning := survey.warning():
        say(warning)
    forced = ["--forcerun", *survey.stale] if survey.stale else []
    command = ["-m", "snakemake", "--snakefile", str(SNAKEFILE), "--configfile", str(config)]
    results = Path(plan.config.results)
    if not {"-n", "--dry-run"} & {*arguments} and last_run_was_killed(results):
        if not resubmit and (jobs := queued_jobs(Path.cwd())):
            raise LayerwiseError(
                f"SLURM still has jobs of a run on {results} that was killed: {', '.join(jobs)}. "
                "Wait for them or cancel them (scancel), and start again: what they finish is not "
                "computed twice. --resubmit starts at once.",
                code="conflict",
            )
        subprocess.run([sys.executable, *command, "--unlock", "--quiet"], check=True)
        (results / RUNNING).unlink()
    # Jobs start `python`: this one, also where its environment is not activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        [sys.executable, *command, *arguments, *forced], env={**os.environ, "PATH": path}
    )
    # Whoever stops this command stops Snakemake with it, which lets no further job start.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    status = process.wait()
    if status:
        raise SystemExit(status)
    return plan


@app.command()
def new(
    models: Annotated[
        list[str] | None,
        Argument(help="Models: names on the hub, folders or package:NAME[/path]."),
    ] = None,
    folder: Annotated[Path, Option(help="Folder to write config.yaml into.")] = Path(),
    preset: Annotated[str, Option(help="A file of presets/, such as panel.")] = "small",
    texts: Annotated[Path | None, Option(help=f"File of prompts: {TEXT_FILES}.")] = None,
    task: Annotated[list[str] | None, Option(help="An MTEB task. Repeat for several.")] = None,
) -> None:
    """Write a preset with your models, prompts and tasks as a config to start from.

    Examples: layerwise new EleutherAI/pythia-70m --texts prompts.txt --folder mystudy;
    layerwise new EleutherAI/pythia-70m --preset panel
    """
    from layerwise.run import starter

    path = starter.write(folder, models or [], preset=preset, texts=texts, tasks=task or ())
    say(
        f"Wrote {path}.",
        f"List its jobs: layerwise run --config {path} --dry-run",
        f"Run it: layerwise run --config {path}",
    )
