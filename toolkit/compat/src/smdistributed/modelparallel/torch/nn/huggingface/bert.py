"""State dictionaries of BERT."""

from muster_modelparallel.wrap.translation import from_hugging_face, to_hugging_face

translate_state_dict_to_hf_bert = to_hugging_face
translate_hf_state_dict_to_smdistributed_bert = from_hugging_face

__all__ = [
    "translate_hf_state_dict_to_smdistributed_bert",
    "translate_state_dict_to_hf_bert",
]
