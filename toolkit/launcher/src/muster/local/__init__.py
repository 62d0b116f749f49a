"""`muster local`: a cluster of one or several hosts on this machine.

`command` and `request` read the command line, `preparation` and `tree` lay out what SageMaker would
give each host, `environment` its variables. `supervisor` is the process that starts the hosts, as
one of `backends` makes them; `hosts` is the other end of it. `session` waits, `show` shows the run,
`record` keeps it.
"""
