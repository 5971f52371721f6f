# What the metrics have to do with the scores, study by study.


rule associate_metrics:
    input:
        inputs("associate_metrics"),
    output:
        **outputs("associate_metrics"),
    log:
        record("logs", "associate_metrics"),
    benchmark:
        record("benchmarks", "associate_metrics")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        command=command("associate_metrics"),
    message:
        "Associating metrics with scores for {wildcards.study}"
    shell:
        RUN


rule compare_choices:
    input:
        inputs("compare_choices"),
    output:
        **outputs(
            "compare_choices",
            summary=report(
                output("compare_choices", "summary"),
                caption="../report/choices.rst",
                category="Tables",
                labels={"study": "{study}", "as": "every metric's picks over models"},
            ),
        ),
    log:
        record("logs", "compare_choices"),
    benchmark:
        record("benchmarks", "compare_choices")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        command=command("compare_choices"),
    message:
        "Holding the layers that metrics pick against the scores for {wildcards.study}"
    shell:
        RUN


rule compare_layers:
    input:
        inputs("compare_layers"),
    output:
        **outputs("compare_layers"),
    log:
        record("logs", "compare_layers"),
    benchmark:
        record("benchmarks", "compare_layers")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(6000),
        runtime=grows(60),
    params:
        command=command("compare_layers"),
    message:
        "Comparing layers for {wildcards.study}"
    shell:
        RUN


rule import_published:
    input:
        inputs("import_published"),
    output:
        **outputs("import_published"),
    log:
        record("logs", "import_published"),
    benchmark:
        record("benchmarks", "import_published")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        command=command("import_published"),
    message:
        "Reading the published tables {wildcards.published}"
    shell:
        RUN


rule find_best_layers:
    input:
        inputs("find_best_layers"),
    output:
        **outputs("find_best_layers"),
    log:
        record("logs", "find_best_layers"),
    benchmark:
        record("benchmarks", "find_best_layers")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(20),
    params:
        command=command("find_best_layers"),
    message:
        "Finding each model's best layer"
    shell:
        RUN
