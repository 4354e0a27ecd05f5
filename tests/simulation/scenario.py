"""What a seed means: everything that is drawn before a run, and the assumptions of the run.

Durations are the production defaults (a lease of 30 s, renewed every 3 s, drift 0.5 s, or 1 s beside Hudi), or a tenth of them.
A run has faults for the first `fault_free_from` seconds, which are several leases. Then it runs without faults until every
contender has had its lock, at most until `bound`.

`VERSION` counts the changes of what seeds mean. A seed in `failing_seeds.txt` names the version under which it failed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from lakewarden.handlers.lease.machine import LeaseSettings
from tests.simulation.agents import LockUsage
from tests.simulation.clocks import Clock, draw_clock
from tests.simulation.faults import FAULTS, FaultPeriod, FaultProfile, PeriodKind
from tests.simulation.hudi import HudiSettings
from tests.simulation.oracles import Assumed

VERSION = 5

Kind: TypeAlias = Literal["fault-free", "usual", "clocks apart"]


@dataclass(frozen=True, slots=True)
class Stop:
    """A node is paused for `seconds`, or killed (None) and restarted `restart` seconds later, if at all."""

    at: float
    seconds: float | None
    suspended: bool = False
    restart: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with its clocks and stops."""

    name: str
    clock: Clock
    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run that is drawn in advance."""

    kind: Kind
    assumed: Assumed
    locks: dict[str, LockUsage]
    agents: tuple[Machine, ...]
    hudi: tuple[Machine, ...]
    hudi_settings: HudiSettings
    profile: FaultProfile
    request_timeout: float
    hint_delay: float | None
    stops_at_requests: float
    """Probability that a node is stopped right after it sent a request, or as an answer arrives."""
    tampering: tuple[tuple[str, float, float], ...]
    """Locks that a person breaks by hand, with start and end."""
    forged_hints: tuple[tuple[str, float, float], ...]
    """Locks about which a stranger publishes invented audit events, with start and end."""
    bound: float
    """When every contender must have had its lock, at the latest."""

    @property
    def fault_free_from(self) -> float:
        """From when on the run has no faults."""
        return self.profile.fault_free_from


def draw(random: Random) -> Scenario:
    """Draw the scenario of a seed."""
    kind: Kind = random.choices(("fault-free", "usual", "clocks apart"), (0.05, 0.83, 0.12))[0]
    agents = random.choices((2, 3, 4, 5), (0.4, 0.3, 0.2, 0.1))[0]
    hudis = random.choices((0, 1, 2), (0.6, 0.25, 0.15))[0] if kind != "clocks apart" else 0
    scale = 0.1 if random.random() < 0.8 else 1.0
    strict = kind == "clocks apart" or random.random() < 0.25
    settings = _settings(random, scale, strict=strict, hudi=hudis > 0)
    locks = random.choices((1, 2, 3), (0.7, 0.2, 0.1))[0] if agents < 4 else 1
    usages = {f"s3://locks/lock-{n + 1}.json": _lock_usage(random, settings.validity) for n in range(locks)}
    fault_free_from = settings.validity * random.uniform(3, 6.5)
    names = [f"a{n + 1}" for n in range(agents)]
    profile = _fault_profile(random, settings, fault_free_from, names, fault_free=kind == "fault-free")
    bound = fault_free_from + _bound(usages, settings, profile, agents + hudis)
    machines = [
        Machine(
            name, _clock(random, kind, settings, bound), _stops(random, kind, settings, fault_free_from, name)
        )
        for name in (*names, *(f"hudi{n + 1}" for n in range(hudis)))
    ]
    buffer = 0.5 * scale
    request_timeout = random.uniform(0.3, 0.9) * settings.renew_interval
    hint_delay = random.choice((None, 0.005, 0.1))
    stops_at_requests = 0.0 if kind == "fault-free" else random.choice((0.0, 0.01, 0.03))
    tampering = () if kind == "fault-free" else _tampering(random, list(usages), settings, fault_free_from)
    refusals = () if kind == "fault-free" else _refusals(random, settings, fault_free_from, names)
    return Scenario(
        kind,
        Assumed(
            settings,
            clocks_agree=kind != "clocks apart",
            hudi_buffer=buffer if hudis else None,
            fault_free=kind == "fault-free",
        ),
        usages,
        tuple(machines[:agents]),
        tuple(machines[agents:]),
        HudiSettings(settings.validity, settings.renew_interval, poll=scale, buffer=buffer),
        replace(profile, periods=(*profile.periods, *refusals)),
        request_timeout,
        hint_delay,
        stops_at_requests,
        tampering,
        () if kind == "fault-free" else _forged_hints(random, list(usages), settings, fault_free_from),
        bound,
    )


def _clock(random: Random, kind: Kind, settings: LeaseSettings, until: float) -> Clock:
    """Draw a clock within the drift of all others, or many leases apart; its rate is off within the assumptions."""
    width = settings.validity * 20 if kind == "clocks apart" else settings.drift
    return draw_clock(
        random,
        until=until,
        band=(-width / 2, width / 2),
        rate_error=0.5 * settings.drift / settings.validity,
        jumps=random.choice((0.0, 0.5)),
    )


def _stops(
    random: Random, kind: Kind, settings: LeaseSettings, fault_free_from: float, name: str
) -> tuple[Stop, ...]:
    count = 0 if kind == "fault-free" else random.choice((0, 0, 1, 2, 3))
    times = [random.uniform(0, fault_free_from) for _ in range(count)]
    return tuple(draw_stop(random, at, settings.validity, fault_free_from, name) for at in times)


def _settings(random: Random, scale: float, *, strict: bool, hudi: bool) -> LeaseSettings:
    return LeaseSettings(
        validity=30 * scale,
        renew_interval=3 * scale,
        drift=(1.0 if hudi else 0.5) * scale,
        margin=random.choice((1.5, 2.0, 5.0)) * scale,
        poll_seconds=10 * scale,
        refusal_seconds=20 * scale,
        unusable_seconds=30 * scale,
        queue_slot_seconds=0.25 * scale,
        strict=strict,
    )


def _lock_usage(random: Random, lease: float) -> LockUsage:
    short = random.random() < 0.5
    return LockUsage(
        hold=lease * (random.uniform(0.002, 0.05) if short else random.uniform(0.2, 1.5)),
        think=lease * random.choice((0.01, 0.1, 0.4)),
        stops_waiting=random.choice((0.0, 0.1, 0.4)),
        waits_for_release=random.choice((0.0, 0.5, 1.0)),
    )


def _fault_profile(
    random: Random, settings: LeaseSettings, fault_free_from: float, agents: list[str], *, fault_free: bool
) -> FaultProfile:
    lease = settings.validity
    worst = 0.0 if fault_free else random.choice((0.0, 0.03, 0.12))
    fault = {each: random.uniform(0.0, worst) if random.random() < 0.7 else 0.0 for each in FAULTS}
    possible: list[tuple[PeriodKind, str | None]] = [
        ("outage", None),
        ("throttling", None),
        ("conflicts", None),
        ("slow", None),
        *(("cut off", agent) for agent in agents),
    ]
    periods: list[FaultPeriod] = []
    for what, node in random.sample(possible, k=0 if fault_free else random.choice((0, 1, 2, 4))):
        since = random.uniform(0, fault_free_from)
        periods.append(
            FaultPeriod(what, since, min(since + lease * random.uniform(0.02, 1.2), fault_free_from), node)
        )
    return FaultProfile(
        latency=lease * random.choice((0.0001, 0.0003, 0.002)),
        spread=random.choice((0.1, 0.5) if fault_free else (0.1, 0.5, 1.2)),
        longest_latency=0.1 * settings.renew_interval,
        fault=fault,
        late_seconds=2.5 * lease,
        periods=tuple(periods),
        fault_free_from=fault_free_from,
    )


def _refusals(
    random: Random, settings: LeaseSettings, fault_free_from: float, agents: list[str]
) -> tuple[FaultPeriod, ...]:
    """Draw when the store refuses all nodes, or one agent whose session has expired: for up to two leases."""
    periods: list[FaultPeriod] = []
    for _ in range(random.choice((0, 0, 1, 2))):
        since = random.uniform(0, fault_free_from)
        until = min(since + settings.validity * random.uniform(0.02, 2.0), fault_free_from)
        periods.append(FaultPeriod("refusals", since, until, random.choice((None, *agents))))
    return tuple(periods)


def _forged_hints(
    random: Random, locks: list[str], settings: LeaseSettings, fault_free_from: float
) -> tuple[tuple[str, float, float], ...]:
    """Draw one period of invented audit events, much longer than a poll interval."""
    if random.random() < 0.8:
        return ()
    seconds = settings.poll_seconds * random.uniform(4, 8)
    at = random.uniform(0, max(0.0, fault_free_from - seconds))
    return ((random.choice(locks), at, min(at + seconds, fault_free_from)),)


def draw_stop(random: Random, at: float, lease: float, fault_free_from: float, name: str) -> Stop:
    """Draw a pause, mostly about as long as a lease or longer, or a death. Our agents restart."""
    if random.random() < 0.1:
        may_restart = not name.startswith("hudi") and random.random() < 0.8
        return Stop(at, None, restart=lease * random.choice((0.01, 0.3, 1.5)) if may_restart else None)
    longest = random.choice((0.1, 0.5, 1.0, 1.5, 2.5))
    seconds = min(lease * longest * random.uniform(0.3, 1.0), fault_free_from - at)
    return Stop(at, seconds, suspended=random.random() < 0.2)


def _tampering(
    random: Random, locks: list[str], settings: LeaseSettings, fault_free_from: float
) -> tuple[tuple[str, float, float], ...]:
    if random.random() < 0.9:
        return ()
    at = random.uniform(0, fault_free_from * 0.8)
    return ((random.choice(locks), at, at + settings.validity + 3 * settings.drift),)


def _bound(
    usages: dict[str, LockUsage], settings: LeaseSettings, profile: FaultProfile, contenders: int
) -> float:
    """Compute a generous bound until every contender has had every lock twice.

    Twice, because a contender that waits when the faults stop has its present turn first. A turn takes at most five mean
    holds, and the poll after which the next contender notices. In the worst case, abandoned leases (of dead nodes, and of writes
    that take effect late) expire one after the other.
    """
    longest = max(each.hold for each in usages.values())
    think = max(each.think for each in usages.values())
    turns = 2 * contenders * (5 * longest + 1.2 * settings.poll_seconds + settings.renew_interval)
    abandoned_leases = (contenders + 1) * (settings.validity + 3 * settings.drift)
    return turns + abandoned_leases + profile.late_seconds + settings.unusable_seconds + 5 * think
