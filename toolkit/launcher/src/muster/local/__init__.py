"""`muster local`: a cluster of one or several hosts on this machine.

`command` and `request` read the command line, `runfolder`, `tree` and `sourcecode` lay out what
SageMaker would give each host, `environment` its variables. `supervisor` is the process that starts
the hosts, in namespaces (`isolated`), as plain processes or as containers (the rooms `docker_*`);
`hosts` is the other end of it. `pump`, `progress` and `screen` show the run, `summary` closes it.
"""
