"""Grading many submissions: a queue of judges, each with a sandbox of its own, and records that survive kill -9."""
