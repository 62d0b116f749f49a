"""State dictionaries of GPT-2."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_gpt2 = to_hugging_face
translate_hf_state_dict_to_smdistributed_gpt2 = from_hugging_face

__all__ = [
    "translate_hf_state_dict_to_smdistributed_gpt2",
    "translate_state_dict_to_hf_gpt2",
]
