"""State dictionaries of GPT-NeoX."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_gptneox = to_hugging_face
translate_hf_state_dict_to_smdistributed_gptneox = from_hugging_face

__all__ = [
    "translate_hf_state_dict_to_smdistributed_gptneox",
    "translate_state_dict_to_hf_gptneox",
]
