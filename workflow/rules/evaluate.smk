# Scores of every layer on all tasks that studies read: one job per model and checkpoint. Finished
# tasks are kept in a folder next to the table, so a killed job and an added task embed only what
# is missing. With `scoring.parts`, several jobs share the tasks, and `evaluate` joins their tables.


rule evaluate:
    input:
        tasks=task_data,
        model=model_files,
        parts=score_parts,
        stale=stale("evaluate", "<results>/scores/{model}/{revision}.parquet"),
    output:
        "<results>/scores/{model}/{revision}.parquet",
    log:
        "<results>/logs/evaluate/{model}/{revision}.log",
    benchmark:
        "<results>/benchmarks/evaluate/{model}/{revision}.tsv"
    priority: longest_first("evaluate")
    conda:
        ENVIRONMENT
    # Where parts are joined, no model is loaded and no GPU held.
    threads: lambda wildcards: 1 if score_parts(wildcards) else SCORING_THREADS
    resources:
        mem_mb=unless_joining(evaluate_memory, JOINING_MB),
        runtime=unless_joining(evaluate_minutes, JOINING_MINUTES),
        disk_mb=unless_joining(evaluate_disk, 0),
        gpu=unless_joining(gpus, 0),
    params:
        key=key("evaluate"),
    message:
        "Scoring the layers of {wildcards.model} at {wildcards.revision}"
    shell:
        script("evaluate_model")
        + " --model {wildcards.model:q} --revision {wildcards.revision:q}"
        " --parts {input.parts:q} --output {output:q} --key {params.key}"
        " --threads {threads} --log {log:q}"


rule evaluate_part:
    input:
        tasks=task_data,
        model=model_files,
        stale=stale(
            "evaluate_part", "<results>/scores/{model}/{revision}/parts/{part}.parquet"
        ),
    output:
        "<results>/scores/{model}/{revision}/parts/{part}.parquet",
    log:
        "<results>/logs/evaluate/{model}/{revision}/parts/{part}.log",
    benchmark:
        "<results>/benchmarks/evaluate/{model}/{revision}/parts/{part}.tsv"
    priority: longest_first("evaluate_part")
    conda:
        ENVIRONMENT
    threads: SCORING_THREADS
    resources:
        mem_mb=evaluate_memory,
        runtime=evaluate_minutes,
        disk_mb=evaluate_disk,
        gpu=gpus,
    params:
        key=key("evaluate_part"),
    message:
        "Scoring the layers of {wildcards.model} at {wildcards.revision}, part {wildcards.part}"
    shell:
        script("evaluate_part")
        + " --model {wildcards.model:q} --revision {wildcards.revision:q}"
        " --part {wildcards.part} --output {output:q} --key {params.key}"
        " --threads {threads} --log {log:q}"
