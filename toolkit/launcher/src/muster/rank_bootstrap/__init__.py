"""Programs that run as processes of the job, started by their paths.

Nothing of muster imports them and they import nothing of muster: the interpreter and the libraries
beside them are the user's.
"""
