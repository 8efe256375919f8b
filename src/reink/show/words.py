"""What the outcomes and reasons of a report mean, for every front that shows one."""

from __future__ import annotations

from types import MappingProxyType

MEANING = MappingProxyType(
    {
        "in place": "the write uses the memory it was written for; nothing is copied",
        "hoisted": "in place too: a read of the old value was moved before the write",
        "saved": "the old bytes that a later read needs were copied before the write",
        "detached": "the write went to a copy, because the old value is still needed",
        "copied back": "the value was made elsewhere and then copied into its input",
    }
)

# By a piece of the reason as the passes word it; the section strict-copy of docs/errors.md says the same.
REASONS = MappingProxyType(
    {
        "a later read needs the old value": (
            "A line that runs after the write still reads what the write destroys. Read it before the write; where "
            "it needs more than the write changes, a clone() of only the part that is needed is smaller."
        ),
        "it costs less than to save what it and later writes destroy": (
            "Lines that run later still read what several writes destroy, and one copy of the memory before the first "
            "of them is smaller than a copy for each reader. Read the old values before the write."
        ),
        "wrote a copy": (
            "The operator was made to write elsewhere, because a later read needs the old value, and what it wrote was "
            "carried back. Its own line names the read."
        ),
        "the same call still reads the old value": (
            "One call writes a tensor and reads what it held before. The part that it reads is copied first; give the "
            "call no more of the old value than it needs."
        ),
        "another operand of the same call lies where it writes": (
            "One call reads and writes the same memory. Give it tensors that do not overlap."
        ),
        "is an input that does not end with this value": (
            "The memory belongs to the caller, who must not see this value in it. Write to a tensor of your own, or "
            "let the input end with the value."
        ),
        "is a constant of the graph": (
            "The program holds this tensor itself and needs it again at the next call. Pass it as an argument."
        ),
        "could not run in place": (
            "The operator ran in new memory and its result was copied. Its operands overlap, or its result has "
            "another dtype or size than the tensor that is written."
        ),
        "the new value was made in other memory than the input's": (
            "The value with which an input ends was made elsewhere. Write it with an in-place operator or copy_()."
        ),
        "eager returns memory of its own here": (
            "Two results, or a result and an input, would share memory that eager keeps apart. Return one of them only."
        ),
    }
)

# Other words of a page that a newcomer may not know.
TERMS = MappingProxyType(
    {
        "pure graph": "the program with each write turned into a new value; its names are not those of your program",
        "storage": "the memory behind one tensor and all of its views",
        "version": "how often a storage has been written: each write makes the next one",
        "epilogue": "the copies at the end of the pure graph that bring new values into the inputs they belong to",
        "getitem": "takes one result out of several that a call returned",
        "auto_functionalized_v2": "how a pure graph holds a custom operator that writes: it returns what was written",
        "strategy v1, v2": "how a custom operator's written operands are described: each for itself (v1), or as views "
        "of the tensors that they share (v2)",
        "ownership": "the check that every write goes to memory that no one still needs",
        "well-formed": "the check that the graph is one that PyTorch can run",
    }
)
