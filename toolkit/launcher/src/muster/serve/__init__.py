"""Server processes that ranks talk to: started by path under the script's Python, imported by none
of ours."""
