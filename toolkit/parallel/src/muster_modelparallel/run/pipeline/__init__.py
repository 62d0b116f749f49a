"""Steps of a model whose stages lie on several ranks.

`steps` runs a step function on all ranks of a pipeline: arguments come from the first rank and
outputs go from the last stage to whoever reads them (`delivery`, `undelivered`); the function stops
where it calls the model and goes on when the output is there, on a thread of its own, or on this
one where nothing can keep it waiting (`functions`, `suspended`, `tasks`). `executor`
does a rank's part of a schedule with its stages (`work`) and passes tensors between ranks; `waits`
says what a rank waits for. `protocols` holds what these need of the wrapped model, which knows
where it is cut. `torch_schedules` reads torch's schedules with several stages on a rank as tables.
"""
