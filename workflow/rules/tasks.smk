# The texts of each task, and the scores of their embeddings: mteb's evaluators, own labels (CPU).


rule make_tasks:
    input:
        inputs("make_tasks"),
    output:
        **outputs("make_tasks"),
        **{task: f"{RESULTS}/{path}" for task, path in MADE.items()},
    log:
        record("logs", "make_tasks"),
    benchmark:
        record("benchmarks", "make_tasks")
    # Short, and the longest jobs wait for it.
    priority: 20
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
        inputs("list_task_texts"),
    output:
        **outputs("list_task_texts"),
    log:
        record("logs", "list_task_texts"),
    benchmark:
        record("benchmarks", "list_task_texts")
    # Short, and the longest jobs wait for it.
    priority: 20
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


rule list_labelled_texts:
    input:
        inputs("list_labelled_texts"),
    output:
        **outputs("list_labelled_texts"),
    log:
        record("logs", "list_labelled_texts"),
    benchmark:
        record("benchmarks", "list_labelled_texts")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(10),
    params:
        command=command("list_labelled_texts"),
    message:
        "Listing the labelled texts of {wildcards.task}"
    shell:
        RUN


rule score_tasks:
    input:
        bundle_inputs("score_tasks"),
    output:
        record("jobs", "score_tasks"),
    log:
        record("logs", "score_tasks"),
    benchmark:
        record("benchmarks", "score_tasks")
    conda:
        ENVIRONMENT
    threads: CONFIG.scoring.threads
    resources:
        mem_mb=scoring_memory(6000),
        runtime=grows(240),
    params:
        command=bundle_command("score_tasks"),
    message:
        "Scoring {wildcards.model} from {wildcards.revision} on"
    shell:
        RUN
