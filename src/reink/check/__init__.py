"""What vouches for a step: checks of its result that share no decision with the passes.

`check_form` asks whether a graph is well-formed, `check_ownership` whether every read of a lowered program
finds the value that the pure program gave it, `prove_values` whether both compute the same values.
"""

from reink.check.form import check_form
from reink.check.ownership import check_ownership
from reink.check.value_proof import prove_values

__all__ = ["check_form", "check_ownership", "prove_values"]
