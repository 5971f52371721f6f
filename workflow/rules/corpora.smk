# Texts: prompts with ids, and their views. Made once for all models, on CPU.


rule unpack_wikipedia:
    output:
        f"{RESULTS}/texts/wikipedia.parquet",
    log:
        f"{RESULTS}/logs/unpack_wikipedia.log",
    benchmark:
        f"{RESULTS}/benchmarks/unpack_wikipedia.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        script=f"{SCRIPTS}/unpack_wikipedia.py",
        key=PLAN.unpack_key,
    message:
        "Cleaning the Wikipedia slice of its markup"
    shell:
        "python {params.script} --output {output} --log {log}"


rule make_corpus:
    input:
        corpus_input,
    output:
        f"{RESULTS}/corpora/{{corpus}}.parquet",
    log:
        f"{RESULTS}/logs/make_corpus/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/make_corpus/{{corpus}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(20),
    params:
        script=f"{SCRIPTS}/make_corpus.py",
        key=corpus_key,
        name=corpus_of,
        source=corpus_source,
        filters=corpus_part("filters"),
        sample=corpus_part("sample"),
    message:
        "Choosing the prompts of {wildcards.corpus}"
    shell:
        "python {params.script} --name {params.name:q} --source {params.source:q}"
        " --filters {params.filters:q} --sample {params.sample:q}"
        " --output {output} --log {log}"


rule make_views:
    input:
        f"{RESULTS}/corpora/{{corpus}}.parquet",
    output:
        f"{RESULTS}/corpora/{{corpus}}.views.parquet",
    log:
        f"{RESULTS}/logs/make_views/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/make_views/{{corpus}}.tsv"
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        script=f"{SCRIPTS}/make_views.py",
        key=views_key,
        settings=corpus_part("views"),
    message:
        "Augmenting the prompts of {wildcards.corpus}"
    shell:
        "python {params.script} --corpus {input} --settings {params.settings:q}"
        " --output {output} --threads {threads} --log {log}"
