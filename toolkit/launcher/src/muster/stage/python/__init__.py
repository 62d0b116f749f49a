"""Packages that the code of the job asks for, and pip."""
