# Tasks that are scored from token states: multiple choice, and sentence pairs by their tokens.


rule list_items:
    input:
        inputs("list_items"),
    output:
        **outputs("list_items"),
    log:
        record("logs", "list_items"),
    benchmark:
        record("benchmarks", "list_items")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        command=command("list_items"),
    message:
        "Listing the items of {wildcards.task}"
    shell:
        RUN


# Apart from run_model, so that a model that a task is not for costs that task alone.
rule score_tokens:
    input:
        bundle_inputs("score_tokens"),
    output:
        record("jobs", "score_tokens"),
    log:
        record("logs", "score_tokens"),
    benchmark:
        record("benchmarks", "score_tokens")
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(240),
        gpu=int(ON_GPU),
    params:
        command=bundle_command("score_tokens"),
    message:
        "Scoring tokens of {wildcards.model} from {wildcards.revision} on"
    shell:
        RUN
