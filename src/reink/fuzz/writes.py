"""The rules for statements that write: ATen in place and ``out=``, custom operators, and what reink refuses."""

from __future__ import annotations

import torch

from reink.fuzz.draft import Draft, NoFit
from reink.fuzz.program import Statement
from reink.fuzz.statements import COMPLEX, FLOATS, rule

# --- ATen writes ----------------------------------------------------------------------------------------


@rule("write")
def _add_in_place(d: Draft, rule: str) -> Statement:
    place = d.place()
    other = d.operand(d.value(place))
    call = d.pick(f"add_({other})", f"add_({other}, alpha=2)", f"sub_({other})", "add_(3)", f"add_({place})")
    read = (other,) if other in call else ()
    return d.write(rule, f"{place}.{call}", (place,), read)


@rule("write")
def _augmented(d: Draft, rule: str) -> Statement:
    place = d.place()
    if place.endswith(")"):
        raise NoFit
    other = d.operand(d.value(place))
    return Statement(rule, f"{place} {d.pick('+=', '-=')} {d.pick(other, '2')}", (), (place,), (other,))


@rule("write")
def _scale_in_place(d: Draft, rule: str) -> Statement:
    place = d.place()
    return d.write(rule, f"{place}.{d.pick('mul_(-1)', 'mul_(2)', 'mul_(0)', 'neg_()', 'square_()')}", (place,))


@rule("write")
def _copy_in(d: Draft, rule: str) -> Statement:
    place = d.place()
    other = d.operand(d.value(place), bounded=False)
    return d.write(rule, f"{place}.copy_({d.pick(other, other, place)})", (place,), (other,))


@rule("write")
def _assign(d: Draft, rule: str) -> Statement:
    place = d.place()
    value = d.value(place)
    part = f"{place}[{d.pick('...', ':', '1:', '::2', '-1', '..., 0', '..., 1:')}]"
    other = d.operand(d.value(part) if value.dim() else value, bounded=False)
    return Statement(rule, f"{part} = {d.pick(other, other, '5')}", (), (part,), (other,))


@rule("write")
def _assign_by_tensor(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    if d.chance(2):
        return Statement(rule, f"{place}[{place} > 3] = 1", (), (place,))
    index = sorted({d.index(value, 0) % value.shape[0] for _ in range(3)})
    other = d.operand(value[0], apart_from=value)
    return Statement(rule, f"{place}[torch.tensor({index})] = {other}", (), (place,), (other,))


@rule("write")
def _fill(d: Draft, rule: str) -> Statement:
    place = d.place()
    return d.write(rule, f"{place}.{d.pick('zero_()', 'fill_(7)', 'fill_(2)')}", (place,))


@rule("write")
def _bounded_in_place(d: Draft, rule: str) -> Statement:
    place = d.place()
    call = d.pick("relu_()", "clamp_(max=9)", "clamp_min_(2)", "abs_()", "sign_()", "remainder_(5)")
    if d.chance(4):
        return d.write(rule, f"torch.nn.functional.relu({place}, inplace=True)", (place,))
    return d.write(rule, f"{place}.{call}", (place,))


@rule("write")
def _compare_in_place(d: Draft, rule: str) -> Statement:
    place = d.place()
    other = d.operand(d.value(place))
    return d.write(rule, f"{place}.{d.pick('gt_', 'eq_', 'ne_')}({other})", (place,), (other,))


@rule("write")
def _masked(d: Draft, rule: str) -> Statement:
    place = d.place()
    other = d.operand(d.value(place), exact=True, apart_from=d.value(place))
    mask = f"({other} == {other}.flip(0))" if d.value(place).dim() else f"({other} > 2)"
    if d.chance(3):
        return d.write(rule, f"{place}.masked_scatter_({mask}, {other}.contiguous())", (place,), (other,))
    return d.write(rule, f"{place}.masked_fill_({mask}, {d.number(0, 9)})", (place,), (other,))


@rule("write")
def _three_operands(d: Draft, rule: str) -> Statement:
    place = d.place()
    value = d.value(place)
    one, two = d.operand(value), d.operand(value)
    call = f"addcmul_({one}.sign(), {two}, value=2)"
    return d.write(rule, f"{place}.{call}", (place,), (one, two))


@rule("write")
def _indexed(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    dim = d.dim(value)
    rows = [d.index(value, dim) % value.shape[dim] for _ in range(d.number(1, 3))]
    part = value.index_select(dim, torch.tensor(rows))
    name = d.pick("index_copy_", "index_add_", "index_fill_")
    index = f"torch.tensor({rows if name == 'index_add_' else sorted(set(rows))})"
    if name == "index_fill_":
        return d.write(rule, f"{place}.index_fill_({dim}, {index}, 4)", (place,))
    if name == "index_copy_":
        part = value.index_select(dim, torch.tensor(sorted(set(rows))))
    source = d.operand(part, exact=True, apart_from=value)
    return d.write(rule, f"{place}.{name}({dim}, {index}, {source})", (place,), (source,))


@rule("write")
def _index_put(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    rows = [d.index(value, 0) for _ in range(d.number(1, 3))]
    accumulate = d.chance(2)
    if not accumulate:
        rows = sorted({r % value.shape[0] for r in rows})
    source = d.operand(value[rows], apart_from=value)
    call = f"index_put_((torch.tensor({rows}),), {source}, accumulate={accumulate})"
    return d.write(rule, f"{place}.{call}", (place,), (source,))


@rule("write")
def _scattered(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    dim = d.number(0, value.dim() - 1)
    index = f"torch.zeros({(*value.shape[:dim], 1, *value.shape[dim + 1 :])}, dtype=torch.int64)"
    row = d.index(value, dim) % value.shape[dim]
    source = d.operand(value.narrow(dim, 0, 1), exact=True, apart_from=value)
    call = d.pick("scatter_", "scatter_add_", "scatter_reduce_")
    last = ", 'amax'" if call == "scatter_reduce_" else ""
    return d.write(rule, f"{place}.{call}({dim}, {index} + {row}, {source}{last})", (place,), (source,))


@rule("write")
def _triangle(d: Draft, rule: str) -> Statement:
    place = d.place(2)
    return d.write(rule, f"{place}.{d.pick('tril_()', 'triu_(1)', 'fill_diagonal_(3)')}", (place,))


@rule("write")
def _running_sum(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    return d.write(rule, f"{place}.remainder_(9).cumsum_({d.dim(d.value(place))})", (place,))


@rule("write")
def _out(d: Draft, rule: str) -> Statement:
    place = d.place()
    value = d.value(place)
    one, two = d.operand(value, exact=True), d.operand(value, exact=True)
    calls = [f"torch.add({one}, {two}, out={place})", f"torch.neg({one}, out={place})"]
    calls += [f"torch.mul({one}, 2, out={place})", f"torch.clamp({one}, max=5, out={place})"]
    if value.dim():
        first, rest = (d.operand(part, exact=True, apart_from=value) for part in (value[:1], value[1:]))
        calls.append(f"torch.cat([{first}, {rest}], out={place})")
        calls.append(f"torch.cumsum({one}.remainder(9), 0, out={place})")
    call = d.pick(*calls)
    return d.write(rule, call, (place,), tuple(e for e in (one, two) if e in call))


@rule("write")
def _foreach(d: Draft, rule: str) -> Statement:
    first, second = d.place(), d.place()
    call = d.pick("_foreach_add_([{0}, {1}], 1)", "_foreach_mul_([{0}, {1}], 2)", "_foreach_neg_([{0}, {1}])")
    return Statement(rule, f"torch.{call.format(first, second)}", (), (first, second))


@rule("write")
def _random_in_place(d: Draft, rule: str) -> Statement:
    place = d.place(0, FLOATS)
    return d.write(rule, f"{place}.{d.pick('bernoulli_()', 'random_(9)', 'uniform_()', 'normal_()')}", (place,))


@rule("write")
def _sub_view_write(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    view = d.pick("[0]", "[-1:]", ".t()", ".view(-1)", "[::2]", ".unsqueeze(0)", ".diagonal()", ".squeeze()")
    return d.write(rule, f"{place}{view}.{d.pick('add_(1)', 'mul_(2)', 'neg_()')}", (f"{place}{view}",))


# --- custom operators -----------------------------------------------------------------------------------


@rule("custom")
def _bump(d: Draft, rule: str) -> Statement:
    place = d.place()
    return Statement(rule, f"ops.bump({place})", (), (place,))


@rule("custom")
def _absorb(d: Draft, rule: str) -> Statement:
    place = d.place()
    other = d.pick(d.operand(d.value(place)), place)
    return Statement(rule, f"ops.absorb({place}, {other})", (), (place,), (other,))


@rule("custom")
def _store_rows(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    start = d.number(0, value.shape[0])
    rows = d.operand(value[start:], exact=True, apart_from=value)
    return Statement(rule, f"ops.store_rows({place}, {rows}, {start})", (), (place,), (rows,))


@rule("custom")
def _first_row(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    return Statement(rule, f"ops.first_row({place})", (), (place,))


@rule("custom")
def _two_written(d: Draft, rule: str) -> Statement:
    low, high = d.place(), d.place()
    return Statement(rule, f"ops.lower_and_scale({low}, {high})", (), (low, high), sequential=True)


@rule("custom")
def _list_written(d: Draft, rule: str) -> Statement:
    places = tuple(d.place() for _ in range(d.number(0, 3)))
    return Statement(rule, f"ops.ramp([{', '.join(places)}])", (), places, sequential=True)


@rule("custom")
def _maybe_written(d: Draft, rule: str) -> Statement:
    place, other = d.place(), d.pick(d.place(), "None")
    written = (place,) if other == "None" else (place, other)
    return Statement(rule, f"ops.bump_maybe({place}, {other})", (), written, sequential=True)


@rule("custom")
def _maybe_list_written(d: Draft, rule: str) -> Statement:
    places = [d.pick(d.place(), "None") for _ in range(d.number(1, 3))]
    written = tuple(p for p in places if p != "None")
    return Statement(rule, f"ops.bump_present([{', '.join(places)}])", (), written, sequential=True)


@rule("custom")
def _spill(d: Draft, rule: str) -> Statement:
    place = d.place()
    source = d.operand(d.value(place), exact=True)
    sink = d.pick(place, "None")
    written = () if sink == "None" else (sink,)
    if d.chance(2):
        return d.let(rule, f"ops.spill({source}, {sink})", written=written, read=(source,))
    sinks = d.pick(f"[{place}]", "None", "[]")
    written = (place,) if place in sinks else ()
    return d.let(rule, f"ops.spill_all({source}, {sinks})", written=written, read=(source,))


@rule("custom")
def _written_and_result(d: Draft, rule: str) -> Statement:
    place = d.place()
    name, parts, dims = d.pick(("bump_and_square", 0, 0), ("bump_and_stats", 2, 1), ("bump_and_parts", 2, 0))
    if d.value(place).dim() < dims:
        raise NoFit
    return d.let(rule, f"ops.{name}({place})", parts, written=(place,))


@rule("custom")
def _returns_its_argument(d: Draft, rule: str) -> Statement:
    place = d.place()
    value = d.value(place)
    source = d.operand(value, exact=True)
    name = d.pick("merge_", "merge_tagged_", "pour", "triple", "triple_tagged")
    if name.startswith("triple"):
        call = f"ops.{name}.out({source}, out={place})"
    else:
        call = f"ops.pour({source}, {place})" if name == "pour" else f"ops.{name}({place}, {source})"
    return d.write(rule, call, (place,), (source,))


@rule("custom")
def _reads_while_writing(d: Draft, rule: str) -> Statement:
    place = d.place(1)
    value = d.value(place)
    other = d.pick(d.place(1), place)
    if d.chance(2):
        return Statement(rule, f"ops.halve_then_add_total({place}, {other})", (), (place,), (other,), sequential=True)
    if d.value(other).shape != value.shape or d.value(other).dtype != value.dtype:
        raise NoFit
    return Statement(rule, f"ops.sweep({other}, {place})", (), (place,), (other,), sequential=True)


@rule("custom")
def _reads_only(d: Draft, rule: str) -> Statement:
    return d.let(rule, f"ops.triple({d.tensor()})")


@rule("custom")
def _strict_dtype(d: Draft, rule: str) -> Statement:
    if d.chance(3):
        place = d.place(0, COMPLEX)
        return Statement(rule, f"ops.turn({place})", (), (place,))
    place = f"{d.tensor(0, (torch.int32, torch.int64, torch.int16))}.view(torch.int32)"
    return Statement(rule, f"ops.flip_sign_bit({place})", (), (place,))


# --- what may be refused, with a code -------------------------------------------------------------------


@rule("metadata")
def _metadata(d: Draft, rule: str) -> Statement:
    name = d.pick(d.tensor(), d.given())
    value = d.values[name]
    calls = ["unsqueeze_(0)", "unsqueeze_(-1)", "squeeze_()", "squeeze_(0)", "as_strided_((1,), (1,))"]
    calls += ["t_()", "transpose_(0, 1)", "swapdims_(-1, 0)", "swapaxes_(0, 1)", "squeeze_((0, 1))"] * (
        value.dim() == 2
    )
    if value.dim():
        size, stride = tuple(value.shape), value.stride()
        calls.append(f"as_strided_({(size[0] // 2, *size[1:])}, {stride}, {value.storage_offset() + stride[0]})")
        calls.append(f"as_strided_({size[-1:]}, {d.pick(stride[-1:], (1,), (0,))})")
    call = d.pick(*calls)
    return d.let(rule, f"{name}.{call}") if d.chance(3) else Statement(rule, f"{name}.{call}")


@rule("metadata")
def _resized(d: Draft, rule: str) -> Statement:
    name = d.pick(d.tensor(1), d.given())
    other = d.tensor(0, (d.values[name].dtype,))
    smaller = tuple(max(n - 1, 1) for n in d.values[name].shape)
    call = d.pick(f"resize_({d.pick((2,), (1, 2), (5,), smaller)})", f"resize_as_({other})")
    return Statement(rule, f"{name}.{call}")


@rule("metadata")
def _other_storage(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    other = d.tensor(0, (d.values[name].dtype,))
    return Statement(rule, d.pick(f"{name}.set_({other})", f"{name}.data = {other}.data"))


@rule("odd")
def _through_data(d: Draft, rule: str) -> Statement:
    place = f"{d.tensor()}.data"
    return Statement(rule, f"{place}.{d.pick('add_(1)', 'zero_()')}", (), (place,))


@rule("odd")
def _python_number(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    return Statement(rule, f"{name}.add_(int({d.tensor()}.sum().remainder(5)))", (), (name,))


@rule("odd")
def _data_dependent(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    return d.let(rule, d.pick(f"{name}[{name} > 2]", f"{name}.nonzero()", f"{name}.unique()"))


@rule("odd")
def _nested_region(d: Draft, rule: str) -> Statement:
    name = d.tensor(0, FLOATS)
    branch = d.pick("lambda t: t + 1, lambda t: t - 1", "lambda t: t.sin(), lambda t: t.clone()")
    return d.let(rule, f"torch.cond({name}.sum() > 3, {branch}, ({name},))")
