# A study's figure, the table of exactly what it shows, and its caption.


rule draw_study:
    input:
        inputs("draw_study"),
    output:
        **outputs(
            "draw_study",
            png=report(
                output("draw_study", "png"),
                caption="../report/study.rst",
                category="Figures",
                labels={"study": "{study}", "as": "figure"},
            ),
            table=report(
                output("draw_study", "table"),
                caption="../report/study.rst",
                category="Tables",
                labels={"study": "{study}", "as": "table"},
            ),
        ),
    log:
        record("logs", "draw_study"),
    benchmark:
        record("benchmarks", "draw_study")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(20),
    params:
        command=command("draw_study"),
    message:
        "Drawing {wildcards.study}"
    shell:
        RUN


rule build_explorer:
    input:
        inputs("build_explorer"),
    output:
        **outputs("build_explorer"),
    log:
        record("logs", "build_explorer"),
    benchmark:
        record("benchmarks", "build_explorer")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(20),
    params:
        command=command("build_explorer"),
    message:
        "Building the explorer"
    shell:
        RUN
