"""Checkpoints: what is saved, when a folder of it is whole, and what a run resumes or starts from.

    manifest.py                what a checkpoint is
    folders.py                 which there are and which are whole
    saving.py, saves.py        writing one; rank 0's checkpoints while training goes on
    kept_config.py             the configs that digests stand for
    resume.py, fork.py         starting from one: the run's own, another run's
    catch_up.py                steps that are trained again, compared with the first time

Megatron's side of it, the files themselves, is `learner/model/state.py`. Importing a module of this folder imports no torch: the
config check and the dispatcher read checkpoints too. docs/checkpoints.md describes them for people who run Weir.
"""
