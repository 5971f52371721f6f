# What the metrics have to do with the scores, study by study.


def associate_key(wildcards):
    return PLAN.associate_key(study_of(wildcards))


def study_metrics(wildcards):
    return PLAN.metrics_files(study_of(wildcards))


def study_scores(wildcards):
    return PLAN.scores_files(study_of(wildcards))


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
    params:
        key=associate_key,
        script=SCRIPTS / "associate_metrics.py",
        settings=as_json(config["association"]),
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    message:
        "Associating metrics with scores for {wildcards.study}"
    shell:
        "python {params.script} --metrics {input.metrics} --scores {input.scores}"
        " --settings {params.settings:q} --output {output} --log {log}"
