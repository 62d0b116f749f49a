"""State dictionaries of GPT-Neo."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_gptneo = to_hugging_face
translate_hf_state_dict_to_smdistributed_gptneo = from_hugging_face

__all__ = [
    "translate_hf_state_dict_to_smdistributed_gptneo",
    "translate_state_dict_to_hf_gptneo",
]
