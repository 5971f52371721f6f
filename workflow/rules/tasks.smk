# Every text of a task encoded once for all layers (GPU), then mteb's evaluators (CPU).


rule make_tasks:
    input:
        unpack(inputs("make_tasks")),
    output:
        **outputs("make_tasks"),
        **{task: f"{RESULTS}/{path}" for task, path in MADE.items()},
    log:
        record("logs", "make_tasks"),
    benchmark:
        record("benchmarks", "make_tasks")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        command=command("make_tasks"),
    message:
        "Making the quickstart's tasks"
    shell:
        RUN


rule list_task_texts:
    input:
        unpack(inputs("list_task_texts")),
    output:
        **outputs("list_task_texts"),
    log:
        record("logs", "list_task_texts"),
    benchmark:
        record("benchmarks", "list_task_texts")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        command=command("list_task_texts"),
    message:
        "Listing the texts of {wildcards.task}"
    shell:
        RUN


rule embed_task:
    input:
        unpack(inputs("embed_task")),
    output:
        **outputs("embed_task"),
    log:
        record("logs", "embed_task"),
    benchmark:
        record("benchmarks", "embed_task")
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(120),
        gpu=int(ON_GPU),
    params:
        command=command("embed_task"),
    message:
        "Embedding {wildcards.task} with {wildcards.model} at {wildcards.revision}"
    shell:
        RUN


rule score_task:
    input:
        unpack(inputs("score_task")),
    output:
        **outputs("score_task"),
    log:
        record("logs", "score_task"),
    benchmark:
        record("benchmarks", "score_task")
    conda:
        ENVIRONMENT
    threads: CONFIG.scoring.threads
    resources:
        mem_mb=grows(6000),
        runtime=grows(120),
    params:
        command=command("score_task"),
    message:
        "Scoring {wildcards.model} at {wildcards.revision} on {wildcards.task}"
    shell:
        RUN
