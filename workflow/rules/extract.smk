# A model at a checkpoint loaded once, for all corpora and tasks: one forward pass per prompt, view and
# text; every layer in one file a corpus and one a task.


rule run_model:
    input:
        bundle_inputs("run_model"),
    output:
        record("jobs", "run_model"),
    log:
        record("logs", "run_model"),
    benchmark:
        record("benchmarks", "run_model")
    # Long jobs first, so that the short ones fill the gaps.
    priority: 15
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(240),
        gpu=int(ON_GPU),
    params:
        command=bundle_command("run_model"),
    message:
        "Running {wildcards.model} from {wildcards.revision} on"
    shell:
        RUN


rule measure_surprisal:
    input:
        inputs("measure_surprisal"),
    output:
        **outputs("measure_surprisal"),
    log:
        record("logs", "measure_surprisal"),
    benchmark:
        record("benchmarks", "measure_surprisal")
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(60),
        gpu=int(ON_GPU),
    params:
        command=command("measure_surprisal"),
    message:
        "Measuring how surprising {wildcards.corpus} is to {wildcards.model} at {wildcards.revision}"
    shell:
        RUN


# Of a corpus in shards: each alone, on whichever device is free.
rule extract_shard:
    input:
        inputs("extract_shard"),
    output:
        **outputs("extract_shard"),
    log:
        record("logs", "extract_shard"),
    benchmark:
        record("benchmarks", "extract_shard")
    priority: 15
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(240),
        gpu=int(ON_GPU),
    params:
        command=command("extract_shard"),
    message:
        "Extracting shard {wildcards.shard} of {wildcards.corpus} with {wildcards.model} at {wildcards.revision}"
    shell:
        RUN


rule compare_weights:
    input:
        inputs("compare_weights"),
    output:
        **outputs(
            "compare_weights",
            table=report(
                output("compare_weights", "table"),
                caption="../report/weights.rst",
                category="Models",
                labels={"table": "weights of each checkpoint"},
            ),
        ),
    log:
        record("logs", "compare_weights"),
    benchmark:
        record("benchmarks", "compare_weights")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(10),
    params:
        command=command("compare_weights"),
    message:
        "Comparing the weights of checkpoints"
    shell:
        RUN
