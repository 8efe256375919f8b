"""Values as numbers: equal numbers are equal bytes, whatever the inputs of the program are.

A term is a result that an operator makes of numbered operands; two calls of one operator on equal numbers are one term
(hash-consing). What memory shows is bytes of terms, and a `Number` says which, in logical order: as strides over one
term where it can, else as runs of bytes. Both are normal forms, so bytes that are equal get one number.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from reink.check.geometry import Geometry

Tensor = torch.Tensor
Dims = tuple[tuple[int, int], ...]

# Pieces of memory that are looked at one by one, in one tensor; a program with more is not decided.
MOST_PIECES = 1 << 20
# What makes a value of which only the stores are known. Two of them may be equal although their terms are not.
LAYERS = "layers"
# A run begins at byte ``code % 2**40`` of term number ``code >> 40``.
_TERM = 40


class Undecided(Exception):
    """The proof cannot follow the program; the message says at what."""


class TooLarge(Undecided):
    """There are too many pieces of memory to look at one by one."""


@dataclass(slots=True, eq=False)
class Term:
    """A value that nothing more is known of than how it was made. Not frozen: `flips` is filled on the way.

    `key`: what makes it, equal keys are one term; `count`: how many bytes it has. `name`: the node that made it first.
    `flips`: its conjugate and negative, by bits and dtype.
    """

    index: int
    key: tuple[Hashable, ...]
    count: int
    name: str
    flips: dict[Hashable, Term] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Number:
    """Bytes in logical order. Unique: two numbers are equal iff they are one object.

    Of one term: from byte `offset` on, `dims` are (count, byte stride) from the outermost in, counted down to bytes.
    Else `runs`. Every run is a multiple of `unit` bytes.
    """

    index: int
    count: int
    unit: int
    term: Term | None = None
    offset: int = 0
    dims: Dims = ()
    runs: Runs | None = None


@dataclass(slots=True, eq=False)
class Runs:
    """Runs of bytes, one after the other: the code of the first byte, the length, and where each ends."""

    codes: Tensor
    lengths: Tensor
    ends: Tensor


class Numbering:
    """All terms and numbers of one proof, each made once."""

    def __init__(self) -> None:
        self.terms: list[Term] = []
        self._terms: dict[tuple[Hashable, ...], Term] = {}
        self._numbers: dict[Hashable, Number] = {}
        self._every: list[Number] = []
        self._logical: dict[tuple[Geometry, Geometry], tuple[int, Dims] | None] = {}
        self._parts: dict[tuple[Number, Geometry, Geometry], Number | None] = {}

    def number(self, index: int) -> Number:
        """The number with this index."""
        return self._every[index]

    def term(self, key: tuple[Hashable, ...], count: int, name: str) -> Term:
        """The term of `count` bytes that `key` makes; `name` counts when it is new."""
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = Term(len(self.terms), key, count, name)
            self.terms.append(found)
        return found

    # -- numbers ---------------------------------------------------------------------------------

    def whole(self, key: tuple[Hashable, ...], count: int, name: str) -> Number:
        """All `count` bytes of the term that `key` makes."""
        return self._of_term(self.term(key, count, name), 0, ((count, 1),))

    def strided(self, term: Term, offset: int, dims: Dims) -> Number:
        """Bytes of one term by strides, in logical order."""
        dims = _normal(dims)
        if _meets_itself(dims):
            return self.of_codes((term.index << _TERM) + _positions(offset, dims, 1), 1)
        return self._of_term(term, offset, dims)

    def _of_term(self, term: Term, offset: int, dims: Dims) -> Number:
        key = (term.index, offset, dims)
        found = self._numbers.get(key)
        if found is None:
            unit = dims[-1][0] if dims else 0
            found = self._add(key, Number(len(self._every), _product(dims), unit, term, offset, dims))
        return found

    def _add(self, key: Hashable, number: Number) -> Number:
        self._numbers[key] = number
        self._every.append(number)
        return number

    def of_codes(self, codes: Tensor, unit: int) -> Number:
        """The number of which piece k, `unit` bytes long, begins at ``codes[k]``."""
        return self._of_runs(codes, torch.full_like(codes, unit))

    def _of_runs(self, codes: Tensor, lengths: Tensor) -> Number:
        """The number of which run k, ``lengths[k]`` bytes long, begins at ``codes[k]``."""
        if codes.numel() > 1:
            first = torch.ones(codes.numel(), dtype=torch.bool, device="cpu")
            torch.ne(codes[1:], codes[:-1] + lengths[:-1], out=first[1:])
            if not bool(first.all()):
                run = first.cumsum(0) - 1
                codes = codes[first]
                lengths = torch.zeros_like(codes).index_add_(0, run, lengths)
        found = _as_strides(codes, lengths)
        if found is not None:
            code, dims = found
            return self._of_term(self.terms[code >> _TERM], code & ((1 << _TERM) - 1), dims)
        key = (_bytes(codes), _bytes(lengths))
        number = self._numbers.get(key)
        if number is None:
            unit = math.gcd(*lengths.unique().tolist())
            runs = Runs(codes, lengths, lengths.cumsum(0))
            number = self._add(key, Number(len(self._every), int(lengths.sum()), unit, runs=runs))
        return number

    def codes(self, number: Number, unit: int) -> Tensor:
        """Where each piece of `unit` bytes begins; `unit` divides every run. Raises TooLarge."""
        if number.count > MOST_PIECES * unit:
            raise TooLarge(f"{number.count // unit} pieces of memory would have to be looked at one by one")
        if number.term is not None:
            return (number.term.index << _TERM) + _positions(number.offset, number.dims, unit)
        return _codes_at(number, torch.arange(0, number.count, unit, device="cpu"))

    def term_of(self, code: int) -> Term:
        """The term that a code is a byte of."""
        return self.terms[code >> _TERM]

    def terms_in(self, number: Number) -> list[Term]:
        """The terms that a number shows bytes of, in the order of their first byte."""
        if number.runs is None:
            return [number.term] if number.term is not None else []
        return [self.terms[k] for k in dict.fromkeys((number.runs.codes >> _TERM).tolist())]

    def joined(self, numbers: Sequence[Number]) -> Number:
        """One number after the other."""
        every = [self._runs(n) for n in numbers]
        return self._of_runs(torch.cat([codes for codes, _ in every]), torch.cat([lengths for _, lengths in every]))

    def _runs(self, number: Number) -> tuple[Tensor, Tensor]:
        """The first byte and the length of each run. Raises TooLarge."""
        if number.runs is not None:
            return number.runs.codes, number.runs.lengths
        codes = self.codes(number, number.unit)
        return codes, torch.full_like(codes, number.unit)

    # -- parts -----------------------------------------------------------------------------------

    def part(self, number: Number, outer: Geometry, inner: Geometry) -> Number | None:
        """What a tensor in `inner` shows where `number` was stored in `outer`; None if strides cannot say it."""
        if outer is inner:
            return number
        key = (number, outer, inner)
        if key not in self._parts:
            self._parts[key] = self._part(number, outer, inner)
        return self._parts[key]

    def _part(self, number: Number, outer: Geometry, inner: Geometry) -> Number | None:
        pair = (outer, inner)
        if pair not in self._logical:
            self._logical[pair] = _logical(outer, inner)
        found = self._logical[pair]
        if found is None:
            return None
        offset, dims = found
        if number.term is not None:
            composed = _decompose(offset, dims, _radix_of(number.dims))
            return None if composed is None else self.strided(number.term, number.offset + composed[0], composed[1])
        if len(dims) == 1:
            return self._cut_out(number, offset, offset + dims[0][0])
        unit = math.gcd(number.unit, offset, dims[-1][0], *(stride for _, stride in dims[:-1]))
        if _product(dims) > MOST_PIECES * unit:
            return None
        return self.of_codes(_codes_at(number, _positions(offset, dims, unit)), unit)

    def _cut_out(self, number: Number, start: int, end: int) -> Number:
        """The bytes from `start` to `end` of a number in runs."""
        runs = number.runs
        assert runs is not None
        first = int(torch.searchsorted(runs.ends, start, right=True))
        last = int(torch.searchsorted(runs.ends, end)) + 1
        codes, lengths = runs.codes[first:last].clone(), runs.lengths[first:last].clone()
        lengths[-1] -= runs.ends[last - 1] - end
        skipped = start - int(runs.ends[first] - runs.lengths[first])
        codes[0] += skipped
        lengths[0] -= skipped
        return self._of_runs(codes, lengths)

    def flipped(self, number: Number, bits: int, dtype: torch.dtype) -> Number:
        """The conjugate (bit 1) and negative (bit 2) of elements of `dtype`."""
        if not bits or not number.count:
            return number
        item = dtype.itemsize
        if number.term is not None:
            strides = [s for n, s in number.dims[:-1]]
            inner = number.dims[-1]
            if inner[1] == 1 and not any(n % item for n in (number.offset, *strides, inner[0])):
                return self._of_term(self._flip(number.term, bits, dtype), number.offset, number.dims)
        elif number.unit % item == 0 and number.runs is not None and not bool((number.runs.codes % item).any()):
            codes = number.runs.codes
            indices, places = torch.unique(codes >> _TERM, return_inverse=True)
            made = [self._flip(self.terms[int(k)], bits, dtype).index for k in indices]
            flipped = (torch.tensor(made, device="cpu")[places] << _TERM) + (codes & ((1 << _TERM) - 1))
            return self._of_runs(flipped, number.runs.lengths)
        return self.whole(("flip", bits, dtype, number.index), number.count, "a lazy conjugate or negative")

    def _flip(self, term: Term, bits: int, dtype: torch.dtype) -> Term:
        found = term.flips.get((bits, dtype))
        if found is None:
            made = self.term(("flip of a term", bits, dtype, term.index), term.count, f"the flipped {term.name}")
            found = term.flips[bits, dtype] = made
            made.flips[bits, dtype] = term
        return found


def _positions(offset: int, dims: Dims, unit: int) -> Tensor:
    """Every `unit`-th position of strides that end in a run, in order."""
    found = torch.tensor([offset], device="cpu")
    for count, stride in (*dims[:-1], (dims[-1][0] // unit, unit)):
        if count > 1:
            steps = torch.arange(count, device="cpu") * stride
            found = (found[:, None] + steps).flatten()
    return found


def _codes_at(number: Number, positions: Tensor) -> Tensor:
    """The codes of the bytes at `positions` of a number in runs."""
    runs = number.runs
    assert runs is not None
    run = torch.searchsorted(runs.ends, positions, right=True)
    return (runs.codes + runs.lengths - runs.ends)[run] + positions


def _bytes(integers: Tensor) -> bytes:
    integers = integers.contiguous()
    return ctypes.string_at(integers.data_ptr(), integers.numel() * integers.itemsize)


def _product(dims: Iterable[tuple[int, int]]) -> int:
    return math.prod(n for n, _ in dims)


def _normal(dims: Dims) -> Dims:
    """Dims of one element dropped, and neighbours that are one dim merged."""
    kept: list[tuple[int, int]] = []
    for count, stride in dims:
        if count == 1:
            continue
        if kept and kept[-1][1] == count * stride:
            kept[-1] = (kept[-1][0] * count, stride)
        else:
            kept.append((count, stride))
    if not kept or kept[-1][1] != 1:
        kept.append((1, 1))
    return tuple(kept)


def _meets_itself(dims: Dims) -> bool:
    """Whether a run ends where the next one begins without being one dim, as in windows that overlap."""
    reach = 0
    for k in range(len(dims) - 1, 0, -1):
        reach += (dims[k][0] - 1) * dims[k][1]
        if dims[k - 1][1] == reach + 1:
            return True
    return False


def _as_strides(codes: Tensor, lengths: Tensor) -> tuple[int, Dims] | None:
    """Maximal runs as a first code and normal dims of one term, if they are that."""
    if codes.numel() == 0:
        return None
    length = int(lengths[0])
    if codes.numel() > 1 and (
        not bool((lengths == length).all()) or not bool((codes >> _TERM == codes[0] >> _TERM).all())
    ):
        return None
    dims = [(length, 1)]
    starts = codes
    while starts.numel() > 1:
        step = int(starts[1] - starts[0])
        other = (starts.diff() != step).nonzero()
        count = int(other[0, 0]) + 1 if other.numel() else starts.numel()
        if starts.numel() % count:
            return None
        rows = starts.view(-1, count)
        if not bool((rows.diff(dim=1) == step).all()):
            return None
        dims.insert(0, (count, step))
        starts = rows[:, 0]
    return int(codes[0]), tuple(dims)


# -- positions -------------------------------------------------------------------------------------

# Digits of a position: (count, stride of the position, stride of what stands there), the widest first.
Radix = list[tuple[int, int, int]]


def _logical(outer: Geometry, inner: Geometry) -> tuple[int, Dims] | None:
    """Which bytes, in the logical order of a tensor in `outer`, a tensor in `inner` shows."""
    item = outer.dtype.itemsize
    radix: Radix = [(item, 1, 1)] if item > 1 else []
    step = item
    for count, stride in zip(reversed(outer.size), reversed(outer.stride), strict=True):
        if count > 1:
            radix.append((count, stride * item, step))
        step *= count
    radix.sort(key=_position_stride, reverse=True)
    own = inner.dtype.itemsize
    dims = (*((n, s * own) for n, s in zip(inner.size, inner.stride, strict=True)), (own, 1))
    found = _decompose(inner.lo - outer.lo, dims, _merged(radix))
    return None if found is None else (found[0], _normal(found[1]))


def _position_stride(digit: tuple[int, int, int]) -> int:
    return digit[1]


def _radix_of(dims: Dims) -> Radix:
    """The digits of a position in logical order, and the stride of each in the term."""
    radix: Radix = []
    step = 1
    for count, stride in reversed(dims):
        radix.append((count, step, stride))
        step *= count
    return radix[::-1]


def _merged(radix: Radix) -> Radix:
    kept: Radix = []
    for count, stride, shown in radix:
        if kept and kept[-1][1] == count * stride and kept[-1][2] == count * shown:
            kept[-1] = (kept[-1][0] * count, stride, shown)
        else:
            kept.append((count, stride, shown))
    return kept


def _decompose(offset: int, dims: Dims, radix: Radix) -> tuple[int, Dims] | None:
    """Positions by strides as what stands there by strides; None where a digit would carry into the next."""
    for (_, wide, _), (count, narrow, _) in itertools.pairwise(radix):
        if wide < count * narrow:
            return None
    digits = _digits(offset, radix)
    if digits is None:
        return None
    start = sum(d * shown for d, (_, _, shown) in zip(digits, radix, strict=True))
    found: list[tuple[int, int]] = []
    todo = [d for d in dims if d[0] != 1]
    while todo:
        count, stride = todo.pop(0)
        steps = _digits(stride, radix)
        if steps is None:
            return None
        full = [k for k, step in enumerate(steps) if digits[k] + (count - 1) * step >= radix[k][0]]
        if full:
            halves = _split(count, stride, full[0], radix)
            if halves is None:
                return None
            todo[:0] = halves
            continue
        for k, step in enumerate(steps):
            digits[k] += (count - 1) * step
        found.append((count, sum(s * shown for s, (_, _, shown) in zip(steps, radix, strict=True))))
    return start, tuple(found)


def _digits(position: int, radix: Radix) -> list[int] | None:
    if position < 0:
        return None
    digits: list[int] = []
    for count, stride, _ in radix:
        digit, position = divmod(position, stride)
        if digit >= count:
            return None
        digits.append(digit)
    return digits if position == 0 else None


def _split(count: int, stride: int, digit: int, radix: Radix) -> list[tuple[int, int]] | None:
    """A dim cut in two where it steps from one digit to the next wider one."""
    if digit == 0:
        return None
    wide = radix[digit - 1][1]
    inner = wide // stride
    if wide % stride or inner <= 1 or inner >= count or count % inner:
        return None
    return [(count // inner, wide), (inner, stride)]
