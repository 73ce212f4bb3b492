"""Where prompts come from.

* `rows`: the rows of a file, a Hugging Face data set or an environment's generator
* `keys`: which key of a row is the prompt, which the answer
* `presets`: the keys in files of other tools
* `dataset`: what the engine is given for a row; the check of all rows
* `tokenizer`: loading the model's tokenizer

Nothing here imports torch or vLLM; transformers, datasets and pyarrow are imported when a source needs them, since the config
check reads the data too.
"""

from producer.data.dataset import Dataset, check_data, open_dataset
from producer.data.tokenizer import load_tokenizer
from producer.environments.base import Prompt, PromptRefused

__all__ = ["Dataset", "Prompt", "PromptRefused", "check_data", "load_tokenizer", "open_dataset"]
