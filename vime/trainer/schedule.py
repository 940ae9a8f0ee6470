"""Which sample is trained in which step, on which data-parallel rank, in which micro-batch. Pure functions over lengths.

Invariants, whatever the input (property-tested): each kept sample lands in exactly one micro-batch; a step holds whole
rollouts; every rank has the same number of micro-batches in a step (some may be empty: a rank without work adds zero);
only a single sample may exceed the token limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

Cost = Callable[[int], float]


@dataclass(frozen=True)
class Plan:
    """`steps[s][r]` are the micro-batches, lists of sample positions, of rank r in step s; `dropped` samples are in none."""

    steps: list[list[list[list[int]]]]
    dropped: list[int]


def split_into_steps(rollout_ids: Sequence[Hashable], rollouts_per_step: int) -> tuple[list[list[int]], list[int]]:
    """Cut samples into steps of `rollouts_per_step` rollouts, by order of first appearance; the incomplete rest is dropped."""
    step_of = {rollout: i // rollouts_per_step for i, rollout in enumerate(dict.fromkeys(rollout_ids))}
    complete = len(step_of) // rollouts_per_step
    steps: list[list[int]] = [[] for _ in range(complete)]
    dropped: list[int] = []
    for i, rollout in enumerate(rollout_ids):
        (steps[step_of[rollout]] if step_of[rollout] < complete else dropped).append(i)
    return steps, dropped


def pack_by_tokens(samples: Sequence[int], costs: Sequence[float], limit: float) -> list[list[int]]:
    """First-fit decreasing: few bins whose costs sum to at most `limit`; a sample over the limit has a bin of its own."""
    bins: list[list[int]] = []
    room: list[float] = []
    for i in sorted(samples, key=lambda i: -costs[i]):
        for b, free in enumerate(room):
            if costs[i] <= free:
                bins[b].append(i)
                room[b] -= costs[i]
                break
        else:
            bins.append([i])
            room.append(limit - costs[i])
    return [sorted(members) for members in bins]


def pack_by_count(samples: Sequence[int], size: int) -> list[list[int]]:
    """Consecutive bins of `size` samples; the last may be smaller."""
    return [list(samples[k : k + size]) for k in range(0, len(samples), size)]


def raise_to_multiple(bins: list[list[int]], multiple: int, costs: Sequence[float]) -> list[list[int]]:
    """Split the costliest bins in two until their number is a multiple; when only single samples are left, add empty bins."""
    heap = [(-sum(costs[i] for i in members), k, members) for k, members in enumerate(bins)]
    heapq.heapify(heap)
    whole: list[list[int]] = []
    serial = len(bins)
    while (len(heap) + len(whole)) % multiple and heap:
        _, _, members = heapq.heappop(heap)
        if len(members) == 1:
            whole.append(members)
            continue
        for part in partition(members, [costs[i] for i in members], 2, equal_size=False):
            heapq.heappush(heap, (-sum(costs[i] for i in part), serial, part))
            serial += 1
    result = sorted(whole + [members for _, _, members in heap])
    return result + [[] for _ in range(-len(result) % multiple)]


def partition(items: Sequence[int], costs: Sequence[float], parts: int, equal_size: bool) -> list[list[int]]:
    """Split `items` into `parts` of like total cost by Karmarkar-Karp differencing (1982), each part sorted.

    With `equal_size` all parts have the same number of items (which `parts` must divide).
    """
    if equal_size and len(items) % parts:
        raise ValueError(f"{len(items)} items do not divide into {parts} equal parts")
    order = sorted(range(len(items)), key=lambda k: -costs[k])
    width = parts if equal_size else 1
    heap = []
    for serial, start in enumerate(range(0, len(order), width)):
        sets = [(costs[k], [items[k]]) for k in order[start : start + width]]
        sets += [(0.0, []) for _ in range(parts - len(sets))]
        heap.append(_state(sets, serial))
    if not heap:
        return [[] for _ in range(parts)]
    heapq.heapify(heap)
    serial = len(order)
    while len(heap) > 1:
        _, _, heavy_first = heapq.heappop(heap)
        _, _, other = heapq.heappop(heap)
        merged = [(a + b, x + y) for (a, x), (b, y) in zip(heavy_first, reversed(other), strict=True)]
        heapq.heappush(heap, _state(merged, serial))
        serial += 1
    return [sorted(members) for _, members in heap[0][2]]


def _state(sets: list[tuple[float, list[int]]], serial: int) -> tuple[float, int, list[tuple[float, list[int]]]]:
    """A heap entry: the widest spread of costs comes out first; `serial` makes ties deterministic."""
    sets = sorted(sets, key=lambda entry: -entry[0])
    return sets[-1][0] - sets[0][0], serial, sets


def forward_cost(hidden: int) -> Cost:
    """Forward FLOPs of a sequence of n tokens, in tokens' worth of linear layers: n + n^2 / (6 hidden)."""
    return lambda tokens: tokens + tokens * tokens / (6.0 * hidden)


def make_plan(
    lengths: Sequence[int],
    rollout_ids: Sequence[Hashable],
    *,
    rollouts_per_step: int,
    ranks: int,
    micro_batch_size: int = 1,
    max_tokens: int | None = None,
    balance: bool = False,
    by_flops: bool = False,
    cost: Cost = float,
) -> Plan:
    """Schedule samples of `lengths` tokens. `max_tokens` given: micro-batches of at most so many tokens (or, `by_flops`,
    of at most what one sequence of so many tokens costs); else of `micro_batch_size` samples.

    `balance` spreads micro-batches over ranks by `cost` instead of in turn.
    """
    steps, dropped = split_into_steps(rollout_ids, rollouts_per_step)
    costs = [cost(n) for n in lengths]
    planned = []
    for samples in steps:
        if max_tokens is None:
            bins = pack_by_count(samples, micro_batch_size)
        elif by_flops:
            bins = pack_by_tokens(samples, costs, cost(max_tokens))
        else:
            bins = pack_by_tokens(samples, [float(n) for n in lengths], max_tokens)
        bins = raise_to_multiple(bins, ranks, costs)
        if balance:
            loads = [sum(costs[i] for i in members) for members in bins]
            spread = partition(range(len(bins)), loads, ranks, equal_size=True)
        else:
            spread = [list(range(rank, len(bins), ranks)) for rank in range(ranks)]
        planned.append([[bins[b] for b in of_rank] for of_rank in spread])
    return Plan(planned, dropped)
