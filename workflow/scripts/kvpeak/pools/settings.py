"""Which settings are worth a replay, and which of those tried are the best."""

from collections.abc import Iterable
from itertools import product

from kvpeak.pools.replay import Outcome, Policy, Setting, policies
from kvpeak.pools.trace import Trace


def recorded(trace: Trace) -> Setting | None:
    """The setting under which a trace was recorded, if it says so."""
    return Setting.parse(trace.setting) if trace.setting else None


def usual(trace: Trace) -> list[Setting]:
    """The recorded setting, every policy as it comes, and of the recorded one each value alone."""
    now = recorded(trace)
    found = [now] if now else []
    for policy in policies().values():
        found.append(Setting(policy.name))
        if now and policy.name == now.policy:
            found += [
                Setting(policy.name, f"{key}:{value}")
                for key, values in policy.search.items()
                for value in values
            ]
    return list(dict.fromkeys(found))


def space(policy: Policy) -> list[Setting]:
    """Every combination of the values that a policy names, and of leaving them out."""
    choices = [
        ["", *(f"{key}:{value}" for value in values)] for key, values in policy.search.items()
    ]
    return [
        Setting(policy.name, ",".join(part for part in parts if part))
        for parts in product(*choices)
    ]


def everything(trace: Trace, limit: int | None) -> list[Setting]:
    """All settings of all policies, the recorded one first.

    Without a limit a threshold that is a share of it changes nothing and is left out.
    """
    now = recorded(trace)
    found = [now] if now else []
    for policy in policies().values():
        found += space(policy)
    if limit is None:
        found = [each for each in found if "garbage_collection_threshold" not in each.parameters]
    return list(dict.fromkeys(found))


def front(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that no other beats in both the peak and the number of real allocations, by peak."""
    best: list[Outcome] = []
    order = sorted(outcomes, key=lambda each: (each.reserved_peak, each.made, _length(each)))
    for outcome in order:
        if outcome.fits and (not best or outcome.made < best[-1].made):
            best.append(outcome)
    return best


def best_of_engine(trace: Trace, outcomes: Iterable[Outcome]) -> Outcome | None:
    """The lowest peak that a setting of the recorded engine reaches; of equal ones the simplest."""
    now = recorded(trace)
    if not now:
        return None
    own = [each for each in outcomes if each.setting.policy == now.policy and each.fits]
    return min(own, key=lambda each: (each.reserved_peak, _length(each), each.made), default=None)


def _length(outcome: Outcome) -> int:
    return outcome.setting.parameters.count(":")
