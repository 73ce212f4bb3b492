"""Checkpoints: what is saved, when a folder is whole, and what a run resumes or starts from.

    manifest.py                what a checkpoint is
    determinism.py             what a step's arithmetic depended on, compared
    folders.py                 which folders there are and which are whole
    saving.py, saves.py        writing one; rank 0's checkpoints while training continues
    kept_config.py             the configs that digests stand for
    resume.py, fork.py         starting from one: the run's own, another run's
    catch_up.py                steps that are trained again, compared with the first time

`learner/model/state.py` writes and reads the files of Megatron. Importing a module of this folder imports no torch: the
config check and the dispatcher read checkpoints too. docs/checkpoints.md describes checkpoints for people who run Weir.
"""
