"""State dictionaries of GPT-J."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_gptj = to_hugging_face
translate_hf_state_dict_to_smdistributed_gptj = from_hugging_face
translate_hf_gptj_state_dict_to_smdistributed_gptj = translate_hf_state_dict_to_smdistributed_gptj

__all__ = [
    "translate_hf_gptj_state_dict_to_smdistributed_gptj",
    "translate_hf_state_dict_to_smdistributed_gptj",
    "translate_state_dict_to_hf_gptj",
]
