"""The launcher: everything that starts, watches, shows, stops and archives runs, on the machine of a person.

    __main__.py      `launch/run_cluster.sh`: the command line of a run
    run.py           one run, from its file to its summary
    folders.py       a run's folder
    exit_codes.py    the exit codes of the commands, and any exit code in words
    config/          reading and checking a run's file
    processes/       the processes of a run: their descriptions, and starting and ending them
    supervise/       which process is started again, when a run is over, and in which order it ends
    observe/         what a run is doing, from its topics, and how that is shown
    cli/             the `weir` command
    archive/         steps trained again, and part of a run as a folder
    models/          models that this machine can make for itself
    configs/         the shipped run files
    run_cluster.sh, setup.sh

It may import all other packages, and none of them imports it. It never imports torch, vLLM, Megatron or transformers, except in
`processes/torchrun.py` and `models/`, which run in their own processes. The learner and the producers are started by their
command lines; nothing is asked of them but what they publish.
"""
