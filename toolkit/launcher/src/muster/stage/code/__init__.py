"""The code of the job: fetched, unpacked, checked."""
