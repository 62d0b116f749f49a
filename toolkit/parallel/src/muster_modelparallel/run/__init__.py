"""The ranks at work: process groups, objects between ranks, steps."""
