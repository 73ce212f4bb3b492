"""The producer process: rolls out what a run's learner asks for, publishes the groups, and takes new weights.

* `__main__`: command line, config check, exit code
* `resources`: engine, tokenizer, environment and data sets, opened once
* `core`, `events`: the state machine, which does no I/O
* `shell`: carries out the core's commands on one asyncio loop
* `clients`: the Kafka clients behind protocols
* `heartbeat`: the thread that reports that the process is alive
* `rollout`: from a prompt to a whole group, all or nothing
* `episode`: one try at one trajectory, and whether it makes progress
* `engine/`, `refit/`, `environments/`, `data/`: what samples, what brings new weights, what scores, where prompts come from

Nothing here imports `learner` or `launch`. vLLM is imported in `engine/vllm_engine.py` and `refit/` alone; `data/` and
`environments/` import neither torch nor transformers before they are used, since the config check runs them.
"""
