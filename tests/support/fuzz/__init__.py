"""Fuzzing of every input format: `python -m support.fuzz` runs the campaign, `test_fuzzing.py` a short one.

`changes` makes other inputs of valid ones; `doors` holds the formats, each with the inputs that it starts
from and the function that a user's input goes through; `judging` says what became of an input; `campaign`
tries many of them in processes that may hang or die.
"""
