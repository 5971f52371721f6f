# One forward pass per prompt and view; every layer of one model at one checkpoint in one file.


rule extract_activations:
    input:
        unpack(inputs("extract_activations")),
    output:
        **outputs("extract_activations"),
    log:
        record("logs", "extract_activations"),
    benchmark:
        record("benchmarks", "extract_activations")
    # Long jobs first, so that the short ones fill the gaps.
    priority: 5
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=grows(8000),
        runtime=grows(120),
        gpu=int(ON_GPU),
    params:
        command=command("extract_activations"),
    message:
        "Extracting {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        RUN


rule compare_weights:
    input:
        unpack(inputs("compare_weights")),
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
