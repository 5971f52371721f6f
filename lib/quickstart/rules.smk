# The quickstart's texts, tasks and models. The workflow includes these rules for an entry of
# `recipes`; RECIPE_FOLDER is the folder that the config names. Names here are the workflow's too.

import quickstart.nano
import quickstart.tasks

QUICKSTART_TEXTS = f"{RECIPE_FOLDER}/wikipedia.parquet"
QUICKSTART_TASKS = [f"{RECIPE_FOLDER}/tasks/{task}" for task in quickstart.tasks.TYPES]


localrules:
    quickstart_texts,
    quickstart_tasks,


rule quickstart_texts:
    output:
        QUICKSTART_TEXTS,
    log:
        "<results>/logs/quickstart/texts.log",
    conda:
        ENVIRONMENT
    params:
        key=PLAN.key("recipe", folder=RECIPE_FOLDER),
    message:
        "Extracting the paragraphs of the Wikipedia slice"
    shell:
        "python -m quickstart texts --output {output:q} --key {params.key} --log {log:q}"


rule quickstart_tasks:
    input:
        texts=QUICKSTART_TEXTS,
    output:
        [directory(folder) for folder in QUICKSTART_TASKS],
    log:
        "<results>/logs/quickstart/tasks.log",
    # The longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    params:
        key=PLAN.key("recipe", folder=RECIPE_FOLDER),
    message:
        "Making the quickstart's tasks"
    shell:
        "python -m quickstart tasks --texts {input.texts:q} --output {output:q}"
        " --key {params.key} --log {log:q}"


for MODEL in quickstart.nano.MODELS:
    CHECKPOINTS = [
        f"{RECIPE_FOLDER}/{MODEL}/{revision}" for revision in quickstart.nano.REVISIONS
    ]

    rule:
        name:
            f"train_{MODEL.replace('-', '_')}"
        input:
            texts=QUICKSTART_TEXTS,
        output:
            [directory(folder) for folder in CHECKPOINTS],
            losses=f"{RECIPE_FOLDER}/{MODEL}.losses.csv",
        log:
            f"<results>/logs/quickstart/{MODEL}.log",
        # The passes of its checkpoints wait for it.
        priority: 20
        conda:
            ENVIRONMENT
        params:
            key=PLAN.key("recipe", folder=RECIPE_FOLDER),
            model=MODEL,
        message:
            f"Training {MODEL}"
        shell:
            "python -m quickstart train --model {params.model} --texts {input.texts:q}"
            " --output {output:q} --key {params.key} --log {log:q}"
