# A study's figure, the table of exactly what it shows, and its caption.


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
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(20),
    params:
        script=f"{SCRIPTS}/draw_study.py",
        key=study_key,
        study=study_of,
        settings=study_settings,
        order=as_json(list(config["models"])),
        tables=study_tables,
    message:
        "Drawing {wildcards.study}"
    shell:
        "python {params.script} --study {params.study:q} --settings {params.settings:q}"
        " --order {params.order:q} {params.tables:q} --png {output.png} --pdf {output.pdf}"
        " --csv {output.csv} --caption {output.caption} --log {log}"
