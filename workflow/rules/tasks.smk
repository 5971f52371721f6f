# Every text of a task encoded once for all layers (GPU), then mteb's evaluators (CPU).


rule make_tasks:
    input:
        f"{RESULTS}/texts/wikipedia.parquet",
    output:
        [touch(f"{RESULTS}/tasks/{encode(task)}.made") for task in QUICKSTART],
    log:
        f"{RESULTS}/logs/make_tasks.log",
    benchmark:
        f"{RESULTS}/benchmarks/make_tasks.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        script=f"{SCRIPTS}/make_tasks.py",
        key=PLAN.make_tasks_key,
        tasks=list(QUICKSTART),
        folder=output_folder,
    message:
        "Making the quickstart's tasks"
    shell:
        "python {params.script} --wikipedia {input} --tasks {params.tasks:q}"
        " --output {params.folder} --log {log}"


rule list_task_texts:
    input:
        folder_input,
    output:
        f"{RESULTS}/tasks/{{task}}.texts.parquet",
    log:
        f"{RESULTS}/logs/list_task_texts/{{task}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/list_task_texts/{{task}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        script=f"{SCRIPTS}/list_task_texts.py",
        key=texts_key,
        task=task_of,
        folders=task_folders,
    message:
        "Listing the texts of {wildcards.task}"
    shell:
        "python {params.script} --task {params.task:q} --folders {params.folders:q}"
        " --output {output} --log {log}"


rule embed_task:
    input:
        model_folder,
        texts=f"{RESULTS}/tasks/{{task}}.texts.parquet",
    output:
        f"{RESULTS}/embeddings/{{model}}/{{revision}}/{{task}}.h5",
    log:
        f"{RESULTS}/logs/embed_task/{{model}}/{{revision}}/{{task}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/embed_task/{{model}}/{{revision}}/{{task}}.tsv"
    conda:
        ENVIRONMENT
    threads: config["extract"]["threads"]
    resources:
        mem_mb=grows(8000),
        runtime=grows(120),
        gpu=int(ON_GPU),
    params:
        script=f"{SCRIPTS}/embed_task.py",
        machine=MACHINE,
        key=embed_key,
        model=model_of,
        spec=model_spec,
        revision=revision_of,
        task=task_of,
        settings=as_json(PLAN.embed_settings()),
    message:
        "Embedding {wildcards.task} with {wildcards.model} at {wildcards.revision}"
    shell:
        "python {params.script} --model {params.model:q} --spec {params.spec:q}"
        " --revision {params.revision:q} --task {params.task:q} --texts {input.texts}"
        " --settings {params.settings:q} --machine {params.machine:q} --key {params.key}"
        " --output {output} --threads {threads} --log {log}"


rule score_task:
    input:
        folder_input,
        embeddings=f"{RESULTS}/embeddings/{{model}}/{{revision}}/{{task}}.h5",
    output:
        f"{RESULTS}/scores/{{model}}/{{revision}}/{{task}}.parquet",
    log:
        f"{RESULTS}/logs/score_task/{{model}}/{{revision}}/{{task}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/score_task/{{model}}/{{revision}}/{{task}}.tsv"
    conda:
        ENVIRONMENT
    threads: config["scoring"]["threads"]
    resources:
        mem_mb=grows(6000),
        runtime=grows(120),
    params:
        script=f"{SCRIPTS}/score_task.py",
        key=score_key,
        model=model_of,
        revision=revision_of,
        task=task_of,
        folders=task_folders,
        settings=as_json(PLAN.score_settings()),
        layers=f"{RESULTS}/scores/{{model}}/{{revision}}/{{task}}",
    message:
        "Scoring {wildcards.model} at {wildcards.revision} on {wildcards.task}"
    shell:
        "python {params.script} --embeddings {input.embeddings} --model {params.model:q}"
        " --revision {params.revision:q} --task {params.task:q}"
        " --folders {params.folders:q} --settings {params.settings:q}"
        " --layers {params.layers} --output {output} --threads {threads} --log {log}"
