"""Functions of lists, sets and maps."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.conversions import ConversionError, convert_value, to_text, to_whole, unify_all, unify_values
from wharf.languages.hcl.numerals import Number, limit_number
from wharf.languages.hcl.values import (
    ANY,
    MAPPINGS,
    NUMBER,
    SEQUENCES,
    STRING,
    CollectionType,
    HclList,
    HclMap,
    HclMapping,
    HclObject,
    HclSequence,
    HclSet,
    HclTuple,
    TupleType,
    Value,
    ValueType,
    build_key,
    build_set,
    describe_value,
    get_type,
    measure_value,
    require_size,
)

MAX_RANGE_ITEMS: Final = 1_024


def _rebuild(original: HclSequence, items: Sequence[Value]) -> Value:
    """Return a list of the same type as the original with other items."""
    if isinstance(original, HclTuple):
        return HclTuple(tuple(items))
    return HclList(tuple(items), original.item_type)


def _unify_items(items: Sequence[Value], budget: Budget, argument: int) -> tuple[Sequence[Value], ValueType]:
    """Return the items converted to their common type. Raises `FunctionError`."""
    budget.use_steps(2 * len(items))
    unified = unify_values(items, budget)
    if unified is None:
        raise FunctionError("the items have no common type", argument=argument)
    return unified, unify_all([get_type(item) for item in unified]) or ANY


def _chunk(context: CallContext, items: HclSequence, size: int) -> Value:
    if size < 0:
        raise FunctionError("the size of a chunk is not negative", argument=1)
    parts = items.items
    context.budget.use_steps(len(parts))
    step = size or max(len(parts), 1)
    chunks = [_rebuild(items, parts[start : start + step]) for start in range(0, len(parts), step)]
    if isinstance(items, HclTuple):
        return HclTuple(tuple(chunks))
    return HclList(tuple(chunks), CollectionType("list", items.item_type))


def _coalesce(context: CallContext, *values: Value) -> Value:
    present = [value for value in values if value is not None]
    if not present:
        raise FunctionError("every argument is null")
    unified = unify_values(present, context.budget)
    if unified is None:
        raise FunctionError("the arguments have no common type")
    return unified[0]


def _coalesce_lists(_: CallContext, *lists: HclSequence | None) -> Value:
    for items in lists:
        if items is not None and items.items:
            return items
    raise FunctionError("every list is empty")


def _compact(context: CallContext, items: HclSequence) -> Value:
    context.budget.use_steps(len(items.items))
    return HclList(tuple(_to_texts(context, [item for item in items.items if item is not None and item != ""])), STRING)


def _to_texts(context: CallContext, items: Sequence[Value]) -> list[str]:
    """Return the items as texts. Raises `FunctionError`."""
    context.budget.use_steps(len(items))
    texts = []
    for number, item in enumerate(items):
        try:
            texts.append(to_text(item))
        except ConversionError as error:
            raise FunctionError(f"item {number}: {error.message}", argument=0, fix=error.fix) from None
    return texts


def _concat(context: CallContext, *lists: HclSequence) -> Value:
    items = [item for part in lists for item in part.items]
    context.budget.use_bytes(8 * len(items))
    if all(isinstance(part, HclList | HclSet) for part in lists):
        unified = unify_values(items, context.budget)
        if unified is not None:
            kinds = [part.item_type for part in lists if not isinstance(part, HclTuple)]
            return HclList(tuple(unified), unify_all(kinds) or ANY)
    return HclTuple(tuple(items))


def _contains(context: CallContext, items: HclSequence, value: Value) -> Value:
    context.budget.use_steps(len(items.items) + (items.size >> 3))
    key = build_key(value)
    return any(build_key(item) == key for item in items.items)


def _remove_repetitions(context: CallContext, items: HclSequence) -> Value:
    unified, kind = _unify_items(items.items, context.budget, 0)
    first: dict[object, Value] = {}
    for item in unified:
        first.setdefault(build_key(item), item)
    return HclList(tuple(first.values()), kind)


def _get_element(_: CallContext, items: HclSequence, index: int) -> Value:
    if not items.items:
        raise FunctionError("the list is empty", argument=0)
    return items.items[index % len(items.items)]


def _flatten(context: CallContext, items: HclSequence) -> Value:
    context.budget.use_steps(items.size >> 3)
    flat: list[Value] = []
    pending: list[Value] = [items]
    while pending:
        value = pending.pop()
        if isinstance(value, SEQUENCES):
            pending += reversed(value.items)
        else:
            flat.append(value)
    return HclTuple(tuple(flat))


def _get_indexed(_: CallContext, collection: Value, key: Value) -> Value:
    if isinstance(collection, MAPPINGS):
        name = to_text(key)
        if name not in collection.entries:
            raise FunctionError(f'no key "{name[:80]}" exists', argument=1)
        return collection.entries[name]
    if not isinstance(collection, HclTuple | HclList):
        raise FunctionError(f"expected a list, got {describe_value(collection)}", argument=0)
    try:
        position = to_whole(key)
    except ConversionError as error:
        raise FunctionError(
            f"index: {error.message}", argument=1, fix="index takes a position; use contains to search for a value"
        ) from None
    if not 0 <= position < len(collection.items):
        raise FunctionError(f"index {position} is outside the list of {len(collection.items)} items", argument=1)
    return collection.items[position]


def _get_length(_: CallContext, value: Value) -> Value:
    if isinstance(value, SEQUENCES):
        return len(value.items)
    if isinstance(value, HclMap):
        return len(value.entries)
    fix = "use strlen for a text" if isinstance(value, str) else "use length(keys(...)) for an object"
    raise FunctionError(f"{describe_value(value)} has no length", argument=0, fix=fix)


def _build_range(context: CallContext, *limits: Number) -> Value:
    start: Number = 0
    if len(limits) == 1:
        end = limits[0]
    else:
        start, end = limits[0], limits[1]
    step: Number = limits[2] if len(limits) > 2 else (1 if start <= end else -1)
    if step == 0:
        raise FunctionError("the step is not zero", argument=2)
    if start != end and (step > 0) != (end > start):
        raise FunctionError("the step leads away from the end", argument=2, fix="change its sign")
    items: list[Number] = []
    current = start
    while current < end if step > 0 else current > end:
        if len(items) >= MAX_RANGE_ITEMS:
            raise FunctionError(f"more than {MAX_RANGE_ITEMS:,} items")
        context.budget.use_steps(2)
        items.append(current)
        current = limit_number(current + step)
    return HclList(tuple(items), NUMBER)


def _unify_sets(context: CallContext, lists: Sequence[HclSequence]) -> tuple[list[Sequence[Value]], ValueType]:
    """Return the items of all sets, converted to the common type. Raises `FunctionError`."""
    everything = [item for part in lists for item in part.items]
    unified, kind = _unify_items(everything, context.budget, 0)
    context.budget.use_steps(sum(part.size for part in lists) >> 2)
    parts = []
    position = 0
    for part in lists:
        parts.append(unified[position : position + len(part.items)])
        position += len(part.items)
    return parts, kind


def _unite(context: CallContext, *lists: HclSequence) -> Value:
    parts, kind = _unify_sets(context, lists)
    return build_set([item for part in parts for item in part], kind)


def _intersect(context: CallContext, *lists: HclSequence) -> Value:
    parts, kind = _unify_sets(context, lists)
    common = set(map(build_key, parts[0]))
    for part in parts[1:]:
        common &= set(map(build_key, part))
    return build_set([item for item in parts[0] if build_key(item) in common], kind)


def _multiply(context: CallContext, *lists: HclSequence) -> Value:
    count = 1
    for part in lists:
        count *= len(part.items)
        context.budget.use_steps(0 if count < 1 << 30 else 1 << 30)
    context.budget.use_bytes(count * 8 * (len(lists) + 2))
    context.budget.use_steps(count * (1 + len(lists)))
    if count:  # Each item is in as many rows as the other lists have combinations.
        require_size(sum(count // len(part.items) * sum(map(measure_value, part.items)) for part in lists))
    rows: list[Value] = [HclTuple(row) for row in product(*[part.items for part in lists])]
    kinds = [unify_all([get_type(item) for item in part.items]) or ANY for part in lists]
    if any(isinstance(part, HclSet) for part in lists):
        return build_set(rows, TupleType(tuple(kinds)))
    return HclTuple(tuple(rows))


def _slice(_: CallContext, items: HclSequence, start: int, end: int) -> Value:
    count = len(items.items)
    if not 0 <= start <= count:
        raise FunctionError(f"the start is between 0 and {count}", argument=1)
    if not start <= end <= count:
        raise FunctionError(f"the end is between {start} and {count}", argument=2)
    return _rebuild(items, items.items[start:end])


def _sort(context: CallContext, items: HclSequence) -> Value:
    texts = _to_texts(context, items.items)
    context.budget.use_steps(len(texts) * max(len(texts).bit_length() >> 2, 1))
    return HclList(tuple(sorted(texts)), STRING)


# -- maps


def _list_keys(context: CallContext, mapping: HclMapping) -> Value:
    context.budget.use_steps(2 * len(mapping.entries))
    keys = tuple(sorted(mapping.entries))
    return HclList(keys, STRING) if isinstance(mapping, HclMap) else HclTuple(keys)


def _list_values(context: CallContext, mapping: HclMapping) -> Value:
    context.budget.use_steps(2 * len(mapping.entries))
    values = tuple([mapping.entries[key] for key in sorted(mapping.entries)])
    return HclList(values, mapping.item_type) if isinstance(mapping, HclMap) else HclTuple(values)


def _look_up(context: CallContext, mapping: HclMapping, key: str, default: Value) -> Value:
    if isinstance(mapping, HclMap):
        try:
            default = convert_value(default, mapping.item_type, context.budget)
        except ConversionError as error:
            raise FunctionError(f"default: {error.message}", argument=2, fix=error.fix) from None
    return mapping.entries.get(key, default)


def _merge(context: CallContext, *mappings: HclMapping | None) -> Value:
    entries: dict[str, Value] = {}
    kinds: list[ValueType] = []
    for mapping in mappings:
        if mapping is None:
            continue
        context.budget.use_bytes(16 * len(mapping.entries))
        entries.update(mapping.entries)
        kinds.append(mapping.item_type if isinstance(mapping, HclMap) else TupleType(()))
    if kinds and all(kind == kinds[0] for kind in kinds) and kinds[0] != TupleType(()):
        return HclMap(entries, kinds[0])
    return HclObject(entries)


def _zip_map(context: CallContext, keys: HclSequence, values: HclSequence) -> Value:
    names = _to_texts(context, keys.items)
    if len(names) != len(values.items):
        raise FunctionError(f"there are {len(names)} keys and {len(values.items)} values", argument=1)
    entries = dict(zip(names, values.items, strict=True))
    return HclObject(entries) if isinstance(values, HclTuple) else HclMap(entries, values.item_type)


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("chunklist", "list:list size:whole", _chunk),
        define_function("coalesce", "values...!:any", _coalesce, min_variadic=1),
        define_function("coalescelist", "lists...!:list", _coalesce_lists, min_variadic=1),
        define_function("compact", "list:list", _compact),
        define_function("concat", "lists...:list", _concat, min_variadic=1),
        define_function("contains", "list:list value!:any", _contains),
        define_function("distinct", "list:list", _remove_repetitions),
        define_function("element", "list:list index:whole", _get_element),
        define_function("flatten", "list:list", _flatten),
        define_function("index", "list:any index:any", _get_indexed),
        define_function("length", "value:any", _get_length),
        define_function("range", "start_or_end:number end?:number step?:number", _build_range),
        define_function("setintersection", "sets...:list", _intersect, min_variadic=1),
        define_function("setproduct", "sets...:list", _multiply, min_variadic=2),
        define_function("setunion", "sets...:list", _unite, min_variadic=1),
        define_function("slice", "list:list from:whole to:whole", _slice),
        define_function("sort", "list:list", _sort),
        define_function("keys", "map:map", _list_keys),
        define_function("values", "map:map", _list_values),
        define_function("lookup", "map:map key:text default:any", _look_up),
        define_function("merge", "maps...!:map", _merge),
        define_function("zipmap", "keys:list values:list", _zip_map),
    )
)
