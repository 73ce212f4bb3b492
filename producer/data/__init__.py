"""Prompts: the rows of a file, a Hugging Face data set or an environment's generator (`rows`), the keys of a row (`keys`,
`presets`), and what the engine is given for one (`dataset`)."""

from producer.data.dataset import Dataset, check_data, open_dataset
from producer.data.tokenizer import load_tokenizer
from producer.environments.base import Prompt, PromptRefused

__all__ = ["Dataset", "Prompt", "PromptRefused", "check_data", "load_tokenizer", "open_dataset"]
