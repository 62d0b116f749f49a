"""State dictionaries of Hugging Face's models, by family."""

from smdistributed.modelparallel.torch.nn.huggingface import (
    bert,
    gpt2,
    gptj,
    gptneo,
    gptneox,
    roberta,
)

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta"]
