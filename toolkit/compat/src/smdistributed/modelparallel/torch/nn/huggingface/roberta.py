"""State dictionaries of RoBERTa."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_roberta = to_hugging_face
translate_hf_state_dict_to_smdistributed_roberta = from_hugging_face
translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta

__all__ = [
    "translate_hf_state_dict_to_smdistributed_roberta",
    "translate_state_dict_to_hf_roberta",
    "translate_state_dict_to_smdistributed",
]
