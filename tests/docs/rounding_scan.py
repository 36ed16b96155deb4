"""Search for quantities of privacy that code other than `fedcore.directed_rounding` rounds.

A quantity is a name, attribute, key or call with one of `WORDS` in it. An expression of one by arithmetic or `max` is a
quantity, too. So is a variable or loop variable of the same function that one was assigned to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

WORDS = frozenset(
    {
        "accounted",
        "cap",
        "ceiling",
        "charge",
        "charged",
        "charges",
        "claim",
        "claimed",
        "claims",
        "delta",
        "deltas",
        "eps",
        "epsilon",
        "epsilons",
        "honest",
        "left",
        "lower",
        "mu",
        "multiplier",
        "multipliers",
        "noise",
        "noises",
        "rate",
        "rates",
        "room",
        "shuffled",
        "sigma",
        "sigmas",
        "spent",
        "target",
        "targets",
    }
)
_THROUGH = frozenset(
    {
        "Decimal",
        "abs",
        "float",
        "fmean",
        "fsum",
        "get",
        "hypot",
        "items",
        "list",
        "max",
        "mean",
        "min",
        "next",
        "pop",
        "sorted",
        "sqrt",
        "sum",
        "tuple",
        "values",
    }
)
"""Calls that pass a quantity on."""
_ROUNDING = frozenset(
    {"around", "format", "format_float_positional", "format_float_scientific", "number", "quantize", "round"}
)
_SHOWN = frozenset(("shown_up", "shown_down", "in_full", "number_up"))
_SPEC = re.compile(r"\{[^{}]*:[^{}]*[0-9.eEfFgG%n][^{}]*\}")


class Found(NamedTuple):
    """A line of a module, and the source of the rounded expression."""

    line: int
    source: str


def roundings(source: str) -> list[Found]:
    """All rounded quantities of a module, in the order of its lines."""
    tree = ast.parse(source)
    found: dict[Found, None] = {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    outside = [node for node in ast.walk(tree) if node not in inside]
    for scope in (*(list(ast.walk(function)) for function in functions), outside):
        tainted = _tainted(scope)
        for node in scope:
            for value in _rounded(node):
                if _is_quantity(value, tainted):
                    found[Found(node.lineno if hasattr(node, "lineno") else value.lineno, ast.unparse(value))] = None
    return sorted(found)


def _rounded(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that this node rounds or formats."""
    if isinstance(node, ast.FormattedValue) and node.format_spec is not None and not _plain(node.format_spec):
        yield node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
        yield from node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    elif isinstance(node, ast.Call):
        name = _name(node.func)
        if name == "format" and isinstance(node.func, ast.Attribute) and _is_text(node.func.value):
            if _SPEC.search(ast.unparse(node.func.value)):
                yield from (*node.args, *(each.value for each in node.keywords))
        elif name == "round" and len(node.args) == 1:
            return  # whole numbers, as in computed sizes and rounds
        elif name in _ROUNDING:
            yield from node.args[:1]
            if name == "quantize" and isinstance(node.func, ast.Attribute):
                yield node.func.value
        elif name == "float" and any(_name(each.func) in _SHOWN for each in node.args if isinstance(each, ast.Call)):
            yield ast.Name("epsilon", lineno=node.lineno)  # a number made of rounded text, to be rounded again


def _plain(spec: ast.expr) -> bool:
    """True if a format only aligns, counts in thousands, or is of dates."""
    text = "".join(each.value if isinstance(each, ast.Constant) else "9g" for each in getattr(spec, "values", ()))
    return "%Y" in text or "%m" in text or not re.search(r"[eEfFgGn%]$", text)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _says(name: str) -> bool:
    return not WORDS.isdisjoint(name.lower().strip("_").split("_"))


def _is_quantity(node: ast.expr, tainted: frozenset[str]) -> bool:
    def of(*nodes: ast.expr | None) -> bool:
        return any(each is not None and _is_quantity(each, tainted) for each in nodes)

    match node:
        case ast.Name(id=name):
            return _says(name) or name in tainted
        case ast.Attribute(attr=name):
            return _says(name)
        case ast.Subscript(value=base, slice=ast.Constant(value=str(key))):
            return _says(key) or of(base)
        case ast.Subscript(value=base, slice=key):
            return of(base) or (isinstance(key, ast.Name) and key.id in tainted)
        case ast.Call(func=func, args=args):
            name = _name(func)
            keys = [each.value for each in args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if name in ("getattr", "get") and any(map(_says, keys)):
                return True
            if name in _THROUGH:
                return of(*args, func.value if isinstance(func, ast.Attribute) else None)
            return name not in _SHOWN and _says(name)
        case ast.BinOp(left=left, right=right):
            return of(left, right)
        case ast.UnaryOp(operand=one) | ast.Starred(value=one) | ast.NamedExpr(value=one):
            return of(one)
        case ast.IfExp(body=body, orelse=orelse):
            return of(body, orelse)
        case ast.Constant(value=str(key)):
            return _says(key)
        case ast.BoolOp(values=several) | ast.Tuple(elts=several) | ast.List(elts=several):
            return of(*several)
        case ast.GeneratorExp(elt=one) | ast.ListComp(elt=one):
            return of(one)
    return False


def _tainted(scope: list[ast.AST]) -> frozenset[str]:
    """Variables of a function, or of the module, that a quantity is assigned to."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in scope:
        match node:
            case ast.Assign(targets=targets, value=value):
                pairs += [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
                pairs.append((target, value))
            case ast.NamedExpr(target=target, value=value):
                pairs.append((target, value))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                pairs.append((target, value))
    names: frozenset[str] = frozenset()
    while True:
        found = names
        for target, value in pairs:
            found |= _assigned(target, value, found)
        if found == names:
            return names
        names = found


def _assigned(target: ast.expr, value: ast.expr, tainted: frozenset[str]) -> frozenset[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        several = (_assigned(one, other, tainted) for one, other in zip(target.elts, value.elts, strict=True))
        return frozenset[str]().union(*several)
    if isinstance(target, ast.Tuple) and not (isinstance(value, ast.Call) and _name(value.func) in ("items", "values")):
        return frozenset()
    if not _is_quantity(value, tainted):
        return frozenset()
    return frozenset(each.id for each in ast.walk(target) if isinstance(each, ast.Name))
