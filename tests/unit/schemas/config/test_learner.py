"""The learner's config sections: which combinations are refused, and that reading them needs neither torch nor megatron."""

import subprocess
import sys
from typing import Any

import pytest

from schemas.config.config import SECTIONS
from schemas.config.file import parse
from schemas.config.learner import LearnerConfig, OptimizerConfig
from schemas.config.loss import ClippedPgConfig

REQUIRED: dict[str, Any] = {"model": {"path": "x"}, "data": {"train": "environment"}}


def problems(**sections: dict[str, Any]) -> str:
    return "\n".join(str(problem) for problem in parse({**REQUIRED, **sections})[1])


def test_every_section_but_model_and_data_has_defaults() -> None:
    parsed, found = parse(REQUIRED)
    assert not found
    assert parsed.keys() == set(SECTIONS)


def test_importing_the_config_imports_neither_torch_nor_megatron() -> None:
    code = "import sys, schemas.config.file, learner.checkpoint.saving, learner.grpo.group_metrics, learner.grpo.split; "
    code += "from learner.model.families import find_family, known_families; "
    code += "families = [find_family(name, '') for name in known_families()]; "
    code += "print([name for name in ('torch', 'megatron', 'transformers', 'vllm') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"use_importance_sampling_correction": False}, "set the type to null or switch the correction on"),
        ({"truncated_importance_sampling_type": "icepop"}, "icepop needs truncated_importance_sampling_ratio_min"),
        ({"truncated_importance_sampling_type": "seq-mask-tis"}, "seq-mask-tis needs"),
        ({"truncated_importance_sampling_ratio_min": 3.0}, "ratio_min 3.0 exceeds the ratio 2.0"),
        ({"truncated_importance_sampling_ratio": 0.0}, "greater than 0"),
        ({"sequence_level_importance_ratios": True}, "needs token_level_loss false"),
        ({"disable_ppo_ratio": True, "force_on_policy_ratio": True}, "no ratio for force_on_policy_ratio"),
        ({"disable_ppo_ratio": True, "ratio_clip_c": 3.0}, "no ratio for ratio_clip_c"),
        ({"ratio_clip_c": 1.0}, "greater than 1"),
        ({"reference_policy_kl_type": "k4"}, "'k1', 'k2' or 'k3'"),
        ({"ratio_clip_mim": 0.1}, "did you mean ratio_clip_min?"),
    ],
)
def test_loss_settings_that_contradict_each_other_are_refused(keys: dict[str, Any], says: str) -> None:
    assert says in problems(loss_fn=keys)


def test_sequence_masks_need_token_weights() -> None:
    keys: dict[str, Any] = {"token_level_loss": False, "sequence_level_importance_ratios": True}
    keys |= {"truncated_importance_sampling_type": "seq-mask-tis", "truncated_importance_sampling_ratio_min": 0.999}
    assert "seq-mask-tis keeps token weights" in problems(loss_fn=keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"nproc": 3, "tensor_model_parallel_size": 2}, "nproc 3 is not a multiple of the 2 processes"),
        ({"sequence_parallel": True}, "needs tensor_model_parallel_size above 1"),
        ({"nproc": 3, "tensor_model_parallel_size": 3, "sequence_parallel": True}, "use 2, 4 or 8"),
        ({"context_parallel_size": 2}, "learner.context_parallel_size=2"),
        ({"sequence_packing": True}, "learner.sequence_packing=True"),
        ({"optimizer": {"lr": 1e-6, "min_lr": 1e-5}}, "min_lr 1e-05 exceeds lr 1e-06"),
        ({"optimizer": {"lr_warmup_steps": 5, "lr_decay_steps": 5}}, "leave nothing of lr_decay_steps 5"),
    ],
)
def test_layouts_and_schedules_that_cannot_be_are_refused(keys: dict[str, Any], says: str) -> None:
    assert says in problems(learner=keys)


def test_data_parallel_size_is_what_the_model_copies_leave() -> None:
    learner = LearnerConfig(nproc=8, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert (learner.model_parallel_size, learner.data_parallel_size) == (4, 2)


def test_defaults_are_nemo_rls() -> None:
    loss = ClippedPgConfig()
    assert (loss.ratio_clip_min, loss.ratio_clip_max, loss.kl_input_clamp_value, loss.kl_output_clamp_value) == (0.2, 0.2, 20, 10)
    assert OptimizerConfig().adam_beta2 == 0.999
