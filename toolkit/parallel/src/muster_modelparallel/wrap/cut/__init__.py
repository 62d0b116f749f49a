"""A model in stages: where it is cut, what a rank holds of it, and what it is as a whole.

`partitioning` finds the stages at the first step that trains, by the plan of rank 0 (`planning`).
`calls` has the stages of this rank for each kind of call of the model, and says which rank holds
which parameter. `stages` is what the wrapped model keeps of all that, and gathers and loads states;
`tied` sums the gradients of parameters that several stages hold; `clipping` takes norms over all.
"""
