"""Find code whose result depends on the order of a set.

That order differs between processes: a simulation could not be replayed, and two servers could disagree. The check reads
one function or class at a time: set displays, `set()`, operators between sets, and names and attributes that are annotated
or assigned as sets. It does not follow a value from one function into another.
"""

import ast
from collections.abc import Iterator

_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
# The result of these does not depend on the order of their input.
_ORDER_BLIND = frozenset({"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len"})
# The result of these does.
_ORDER_KEEPING = frozenset({"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed", "deque"})
_ORDER_KEEPING_METHODS = frozenset({"join", "fromkeys", "extend"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_set_iterations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and description of every expression that iterates over a set in its own order."""
    visitor = _Visitor()
    visitor.visit(tree)
    yield from visitor.found


class _Visitor(ast.NodeVisitor):
    """Collects the expressions of one module that iterate over a set. It tracks which names and attributes hold sets."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._names: list[frozenset[str]] = [frozenset()]  # Names that hold sets, a scope each.
        self._attributes: list[frozenset[str]] = [frozenset()]  # Attributes of self that hold sets, a class each.
        self._order_blind_ids: set[int] = set()  # ids of comprehensions whose consumer ignores order.

    # Scopes

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_scope(node, frozenset())

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit a class while the attributes that hold sets are known."""
        self._attributes.append(self._set_attributes(node))
        self.generic_visit(node)
        self._attributes.pop()

    def _visit_function(self, node: _Function) -> None:
        """Visit a function while its parameters that are annotated as sets are known."""
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._visit_scope(node, frozenset(a.arg for a in arguments if _is_set_annotation(a.annotation)))

    def _visit_scope(self, node: ast.Module | _Function, parameters: frozenset[str]) -> None:
        """Visit a module or function while the names that hold sets in it are known."""
        self._names.append(self._names[-1] | parameters)
        self._names[-1] = self._names[-1] | self._set_names(node)
        self.generic_visit(node)
        self._names.pop()

    def _set_names(self, scope: ast.Module | _Function) -> frozenset[str]:
        """Return the names to which this scope assigns only sets."""
        sets: set[str] = set()
        others: set[str] = set()
        for node in _walk_scope(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        (sets if self._is_set(node.value) else others).add(target.id)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                (sets if _is_set_annotation(node.annotation) else others).add(node.target.id)
        return frozenset(sets - others)

    def _set_attributes(self, scope: ast.ClassDef) -> frozenset[str]:
        """Return the attributes of `self` that are annotated or assigned as sets anywhere in the class."""
        sets: set[str] = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
                target = node.target
                if isinstance(target, ast.Attribute):
                    sets.add(target.attr)
                elif isinstance(target, ast.Name) and node in scope.body:
                    sets.add(target.id)
            elif isinstance(node, ast.Assign) and self._is_set(node.value):
                sets.update(target.attr for target in node.targets if isinstance(target, ast.Attribute))
        return frozenset(sets)

    # Whether an expression is a set

    def _is_set(self, node: ast.expr) -> bool:
        """Return whether an expression is known to be a set."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self._names[-1]
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                return attribute in self._attributes[-1]
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in _SET_METHODS:
                return self._is_set(receiver)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                # Operators between views of a dict's keys make sets too; `|` between dicts does not.
                return any(self._is_set(side) or _is_keys_view(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_set(body) and self._is_set(orelse)
            case ast.NamedExpr(value=value):
                return self._is_set(value)
            case _:
                return False

    # Expressions in which the order of a set shows

    def visit_For(self, node: ast.For) -> None:
        self._check_iterable(node.iter, "a loop")
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        """Check what a comprehension iterates over, unless its consumer ignores order."""
        if id(node) not in self._order_blind_ids:
            for generator in node.generators:
                self._check_iterable(generator.iter, "a comprehension")
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check_iterable(node.value, "an unpacking")
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._check_iterable(node.value, "yield from")
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        # {*a, *b} makes a set again: the order of the parts does not show.
        for element in node.elts:
            self.visit(element.value if isinstance(element, ast.Starred) else element)

    def visit_Call(self, node: ast.Call) -> None:
        """Check the arguments of a call that keeps the order of its input, such as `list(…)` and `join`."""
        match node.func:
            case ast.Name(id=name) if name in _ORDER_BLIND:
                self._order_blind_ids.update(id(argument) for argument in node.args)
            case ast.Name(id=name) if name in _ORDER_KEEPING:
                for argument in node.args:
                    self._check_iterable(argument, f"{name}()")
            case ast.Attribute(attr=method) if method in _ORDER_KEEPING_METHODS:
                for argument in node.args:
                    self._check_iterable(argument, f"{method}()")
            case ast.Attribute(value=receiver, attr="pop") if not node.args:
                self._check_iterable(receiver, "pop()")
            case _:
                pass
        self.generic_visit(node)

    def _check_iterable(self, node: ast.expr, iteration: str) -> None:
        """Record an iteration over a set. `iteration` describes it, such as "a loop"."""
        if self._is_set(node):
            self.found.append((node.lineno, iteration))


def _is_set_annotation(annotation: ast.expr | None) -> bool:
    """Return whether a type annotation is that of a set."""
    match annotation:
        case ast.Subscript(value=value):
            return _is_set_annotation(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SET_TYPES
        case _:
            return False


def _is_keys_view(node: ast.expr) -> bool:
    """Return whether an expression is a call of `keys()`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys"), args=[]):
            return True
        case _:
            return False


def _walk_scope(scope: ast.Module | _Function) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
