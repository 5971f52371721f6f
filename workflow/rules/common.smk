# What the rules share. The table of stages (layerwise.workflow.stages) says what each job reads and
# writes; the plan made from it and the config says which jobs are due. Snakemake runs those and
# nothing else: a job that is not due has no inputs here, so that nothing can make it run, and one
# that is due has a file among its inputs that is newer than all of its own.

import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

# The plan and its jobs use the library that lies beside the workflow, whatever is installed, and
# whatever environment a job runs in. By its relative path: PYTHONPATH cannot hold a colon.
if set("{}") & set(str(workflow.basedir)):
    raise WorkflowError(
        f"The workflow lies in {workflow.basedir}, and Snakemake takes braces in that path for "
        "patterns; rename the folder."
    )
BESIDE = Path(workflow.basedir).parent / "lib"
# Of an installed package, workflow/ lies in layerwise/_project.
LIBRARY = os.path.relpath(BESIDE if BESIDE.is_dir() else BESIDE.parents[2])
if os.pathsep in LIBRARY:
    raise WorkflowError(
        f"The workflow lies in a folder with {os.pathsep!r} in its path ({LIBRARY}), which "
        "PYTHONPATH cannot hold; move it, or run snakemake there."
    )
sys.path.insert(0, os.path.abspath(LIBRARY))

from layerwise.errors import LayerwiseError
from layerwise.names import decode, encode
from layerwise.workflow import targets
from layerwise.workflow.plan import Bundle
from layerwise.workflow.run import MARK, Start, hand_on
from layerwise.workflow.stages import STAGES

hand_on(LIBRARY)
SCRIPTS = os.path.relpath(Path(workflow.basedir).parent / "scripts")
ENVIRONMENT = "../../envs/environment.yaml"

try:
    START = Start(config, workflow.configfiles, checked=not workflow.is_main_process)
    PLAN, CONFIG = START.plan, START.plan.config
    if workflow.is_main_process:
        DUE = START.due()
        for line in START.reasons(DUE):
            logger.info(line)
        START.mark(DUE)
except LayerwiseError as error:
    raise WorkflowError(str(error))

RESULTS = CONFIG.results
TARGETS = START.files_of(targets.targets(CONFIG))
# For the first page of the report, which knows the config alone.
config["first_page"] = [
    PLAN.paths(job)["page"]
    for job in targets.targets(CONFIG)
    if job.stage == "find_best_layers"
]
# Stages with a rule of their own; the others' jobs come in bundles.
RULES = {name for name, stage in STAGES.items() if not stage.rule}
MADE = STAGES["make_tasks"].more_files(CONFIG)
ON_GPU = CONFIG.extract.device != "cpu"


# Of a real run alone: one may well look at results that one cannot write.
onstart:
    try:
        START.take_hold()
    except LayerwiseError as error:
        raise WorkflowError(str(error))


wildcard_constraints:
    model=r"[^/]+",
    revision=r"[^/]+",
    corpus=r"[^/]+?(?<!\.views)(?<!\.prompts)(?<!\.positions)",
    task=r"[^/]+",
    shard=r"[0-9]+",
    study=r"[^/]+",
    published=r"[^/]+",
    part=r"[0-9]+",


def job_of(stage, wildcards):
    return PLAN.job(stage, **{name: wildcards[name] for name in STAGES[stage].names})


def inputs(stage, **names):
    """What a job waits for, if it is due."""

    def of(wildcards):
        job = job_of(stage, names or wildcards)
        return [*PLAN.waits_for([job]), str(MARK)] if PLAN.needed(job) else []

    return of


def bundle_of(rule, wildcards):
    return Bundle(rule, *(decode(wildcards[n]) for n in ("model", "revision", "part")))


def turn(bundle):
    """The markers that a bundle waits for until there is room on the disk.

    In a run of everything: whoever asks for a file wants that, and not all that is before it in
    the queue; and a job in a process of its own has had its turn.
    """
    asked_for = set(
        workflow.dag_settings.targets
    )  # not known before the rules are read
    shares = workflow.is_main_process and asked_for <= {"all"}
    return PLAN.turns.get(bundle, []) if shares else []


def bundle_inputs(rule):
    """What a bundle waits for, if any of its jobs is due: the files that it reads, and its turn."""

    def of(wildcards):
        bundle = bundle_of(rule, wildcards)
        jobs = list(filter(PLAN.needed, PLAN.members(bundle)))
        return [*PLAN.waits_for(jobs), *turn(bundle), str(MARK)] if jobs else []

    return of


def bundle_command(rule):
    def of(wildcards):
        bundle = bundle_of(rule, wildcards)
        about = [
            part
            for name in ("model", "revision", "part")
            for part in (f"--{name}", getattr(bundle, name))
        ]
        return [*program(rule), *about, "--key", PLAN.bundle_key(bundle)]

    return of


def outputs(stage, **roles):
    """The files of a stage as patterns; `roles` are for some of them in place of those."""
    return {
        role: roles.get(role, f"{RESULTS}/{path}")
        for role, path in STAGES[stage].files.items()
    }


def output(stage, role):
    return outputs(stage)[role]


def record(kind, stage):
    """A stage's log or benchmark file as a pattern."""
    names = STAGES[stage].names if stage in RULES else ("model", "revision", "part")
    suffix = {"logs": "log", "benchmarks": "tsv", "jobs": "json"}[kind]
    parts = [RESULTS, kind, stage, *(f"{{{name}}}" for name in names)]
    return f"{'/'.join(parts)}.{suffix}"


def program(rule):
    return ["python", f"{SCRIPTS}/{rule}.py", "--config", str(START.snapshot)]


def command(stage, **names):
    """The command of a job as a list; the shell gets each part in quotes."""

    def of(wildcards):
        job = job_of(stage, names or wildcards)
        about = zip(STAGES[stage].names, job.names)
        given = [part for name, value in about for part in (f"--{name}", value)]
        return [*program(stage), *given, "--key", PLAN.key(job)]

    return of


def nano_outputs(model):
    """The folders of a nano model's checkpoints, and the table of its losses."""
    files = STAGES["train_nano"].paths(CONFIG, (model,))
    losses = report(
        files.pop("losses"),
        caption="../report/losses.rst",
        category="Models",
        labels={"model": model, "table": "loss by revision"},
    )
    return {"losses": losses, "folders": list(files.values())}


RUN = "{params.command:q} --threads {threads} --log {log:q}"


def grows(base):
    """Memory or minutes that grow with each attempt."""

    def by_attempt(wildcards, attempt):
        return base * attempt

    return by_attempt


def scoring_memory(base):
    """Memory that tasks of many texts need, and at least `base`."""

    def by_attempt(wildcards, attempt):
        bundle = bundle_of("score_tasks", wildcards)
        return attempt * max(base, PLAN.scoring_megabytes(bundle))

    return by_attempt
