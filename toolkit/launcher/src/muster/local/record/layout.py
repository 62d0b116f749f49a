"""What muster calls the files and folders of a run folder, and where runs lie."""

from __future__ import annotations

RUNS = "muster-runs"
MARK = ".muster-run"
SOURCE = "source/sourcedir.tar.gz"
FRESH_SOURCE = ".sourcedir.new"  # until an earlier run has given way
EARLIER = ".earlier"  # a run that gives way once an engine has taken the new one
MOVING = ".earlier-moving"  # such a run on its way, out or back
COMMAND = "command.json"
SUBMITTED = "submitted.json"  # of a job that another engine has
SECRET, ENVIRON = "secret", "environ.json"  # that its hosts share; the script's variables
BATCH_SCRIPT, ENGINE_LOG = "job.sbatch", "engine.log"
KUBERNETES_OBJECTS, BATCH_REQUESTS = "job.yaml", "batch.json"
OF_ENGINES = (BATCH_SCRIPT, ENGINE_LOG, KUBERNETES_OBJECTS, BATCH_REQUESTS)
OF_SUBMIT = (SUBMITTED, SECRET, ENVIRON, *OF_ENGINES)
LAUNCH = "launch.json"  # for an editor's debugger
HELD = "held"  # which rank a debugger held at its failure; `rank_bootstrap/debugging.py` makes it
MODEL = "model"
FRESH_MODEL = ".model.new"  # while it is gathered
OF_A_RUN = (MARK, FRESH_SOURCE, COMMAND, *OF_SUBMIT, LAUNCH, HELD, MODEL, FRESH_MODEL)
