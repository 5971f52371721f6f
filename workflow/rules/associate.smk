# What the metrics have to do with the scores, study by study.


rule associate_metrics:
    input:
        metrics=study_metrics,
        scores=study_scores,
    output:
        f"{RESULTS}/associations/{{study}}.parquet",
    log:
        f"{RESULTS}/logs/associate_metrics/{{study}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/associate_metrics/{{study}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        script=f"{SCRIPTS}/associate_metrics.py",
        key=associate_key,
        settings=as_json(config["association"]),
        tables=association_tables,
    message:
        "Associating metrics with scores for {wildcards.study}"
    shell:
        "python {params.script} {params.tables:q}"
        " --settings {params.settings:q} --output {output} --log {log}"


rule compare_choices:
    input:
        metrics=study_metrics,
        scores=study_scores,
    output:
        table=f"{RESULTS}/choices/{{study}}.parquet",
        summary=report(
            f"{RESULTS}/choices/{{study}}.csv",
            caption="../report/choices.rst",
            category="Tables",
            labels={"study": "{study}", "as": "every metric's picks over models"},
        ),
    log:
        f"{RESULTS}/logs/compare_choices/{{study}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/compare_choices/{{study}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        script=f"{SCRIPTS}/compare_choices.py",
        key=choices_key,
        settings=as_json(config["association"]),
        tables=association_tables,
    message:
        "Holding the layers that metrics pick against the scores for {wildcards.study}"
    shell:
        "python {params.script} {params.tables:q} --settings {params.settings:q}"
        " --output {output.table} --summary {output.summary} --log {log}"


rule import_published:
    input:
        scores=published_table("scores"),
        metrics=published_table("metrics"),
    output:
        scores=f"{RESULTS}/published/{{published}}.scores.parquet",
        metrics=f"{RESULTS}/published/{{published}}.metrics.parquet",
    log:
        f"{RESULTS}/logs/import_published/{{published}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/import_published/{{published}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        script=f"{SCRIPTS}/import_published.py",
        key=published_key,
    message:
        "Reading the published tables {wildcards.published}"
    shell:
        "python {params.script} --published-scores {input.scores}"
        " --published-metrics {input.metrics} --scores {output.scores}"
        " --metrics {output.metrics} --log {log}"


rule find_best_layers:
    input:
        PLAN.all_scores(),
    output:
        table=f"{RESULTS}/report/best_layers.csv",
        page=f"{RESULTS}/report/best_layers.rst",
    log:
        f"{RESULTS}/logs/find_best_layers.log",
    benchmark:
        f"{RESULTS}/benchmarks/find_best_layers.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(20),
    params:
        script=f"{SCRIPTS}/find_best_layers.py",
        key=PLAN.best_key(),
        tables=table_arguments("best", {"scores": PLAN.all_scores()}),
        order=as_json(list(config["models"])),
        seed=config["association"]["seed"],
    message:
        "Finding each model's best layer"
    shell:
        "python {params.script} {params.tables:q} --order {params.order:q}"
        " --seed {params.seed} --output {output.table} --page {output.page} --log {log}"
