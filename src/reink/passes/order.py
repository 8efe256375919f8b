"""Restoring a good order: node order means nothing in a pure graph, and passes leave any.

The order in which the user's program ran had every read of an old version before the write that ends it. So
nodes are sorted as captured, as far as their inputs allow; a node that a pass added goes as early as its inputs.
"""

from __future__ import annotations

import heapq

import torch.fx

from reink.core.opinfo import facts_of

Node = torch.fx.Node


def in_capture_order(nodes: list[Node]) -> list[Node]:
    """`nodes` (a topological order without placeholders and output) sorted by when they were captured.

    Nodes with an effect keep the order of capture among themselves.
    """
    keys = _keys(nodes)
    position = {n: k for k, n in enumerate(nodes)}
    ordered = [n for n in nodes if is_ordered(n)]
    as_captured = sorted(ordered, key=lambda n: (keys[n], position[n]))
    # a pass may have made one depend on the other the other way round: then the order it left stands
    return _sorted(nodes, keys, as_captured) or _sorted(nodes, keys, ordered) or nodes


def _sorted(nodes: list[Node], keys: dict[Node, float], effects: list[Node]) -> list[Node] | None:
    """Kahn's algorithm, the smallest key first; None when `effects` in that order make a cycle."""
    waiting, users = _dependences(nodes, effects)
    heap = [(keys[n], k, n) for k, n in enumerate(nodes) if not waiting[n]]
    position = {n: k for k, n in enumerate(nodes)}
    heapq.heapify(heap)
    ordered: list[Node] = []
    while heap:
        _, _, node = heapq.heappop(heap)
        ordered.append(node)
        for user in users.get(node, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(heap, (keys[user], position[user], user))
    return ordered if len(ordered) == len(nodes) else None


def _keys(nodes: list[Node]) -> dict[Node, float]:
    keys: dict[Node, float] = {}
    for node in nodes:
        known = node.meta.get("reink_order")
        if known is None:
            known = max((keys.get(i, -1.0) for i in node.all_input_nodes), default=-1.0)
        keys[node] = float(known)
    return keys


def _dependences(nodes: list[Node], effects: list[Node]) -> tuple[dict[Node, int], dict[Node, list[Node]]]:
    inside = set(nodes)
    waiting: dict[Node, int] = {}
    users: dict[Node, list[Node]] = {}
    before = dict(zip(effects[1:], effects, strict=False))
    for node in nodes:
        needs = [i for i in node.all_input_nodes if i in inside]
        previous = before.get(node)
        if previous is not None and previous not in needs:
            needs.append(previous)
        waiting[node] = len(needs)
        for need in needs:
            users.setdefault(need, []).append(node)
    return waiting, users


def is_ordered(node: Node) -> bool:
    """Whether the node keeps its place among nodes with an effect."""
    if node.op != "call_function":
        return False
    return "reink_ordered" in node.meta or facts_of(node.target).ordered
