"""Reading and checking a run's file before anything is started.

    check.py          every problem in the sections and between them, in one error
    rules.py          the rules between sections, and between the file and this machine
    model_facts.py    what a checkpoint's config.json says about the model
    resume.py         the file of a resumed run
    dry_run.py        what `--dry-run` prints

Imports neither torch nor vLLM nor transformers; starts nothing, and asks no broker.
"""
