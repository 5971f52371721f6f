# A study's figure, the table of exactly what it shows, and its caption.


def study_key(wildcards):
    return PLAN.study_key(study_of(wildcards))


def study_settings(wildcards):
    return as_json(PLAN.study_settings(study_of(wildcards)))


def study_inputs(wildcards):
    """The tables that this kind of study needs, by name."""
    study = study_of(wildcards)
    return {name: PLAN.tables(study, name) for name in PLAN.needs(study)}


def study_files(wildcards):
    return [file for files in study_inputs(wildcards).values() for file in files]


def study_tables(wildcards):
    return table_arguments(f"draw.{wildcards.study}", study_inputs(wildcards))


rule draw_study:
    input:
        study_files,
    output:
        png=report(
            f"{RESULTS}/figures/{{study}}.png",
            caption="../report/study.rst",
            category="Figures",
            labels={"study": "{study}", "as": "figure"},
        ),
        pdf=f"{RESULTS}/figures/{{study}}.pdf",
        csv=report(
            f"{RESULTS}/tables/{{study}}.csv",
            caption="../report/study.rst",
            category="Tables",
            labels={"study": "{study}", "as": "table"},
        ),
        caption=f"{RESULTS}/figures/{{study}}.rst",
    log:
        f"{RESULTS}/logs/draw_study/{{study}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/draw_study/{{study}}.tsv"
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(20),
    params:
        key=study_key,
        study=study_of,
        settings=study_settings,
        order=as_json(list(config["models"])),
        tables=study_tables,
    message:
        "Drawing {wildcards.study}"
    shell:
        "python {SCRIPTS}/draw_study.py --study {params.study:q} --settings {params.settings:q}"
        " --order {params.order:q} {params.tables:q} --png {output.png} --pdf {output.pdf}"
        " --csv {output.csv} --caption {output.caption} --log {log}"
