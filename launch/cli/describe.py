"""A record as a person reads it: pure functions of its bytes. Every record gets a line; a damaged one gets what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from broker_config.clients.reader import Record
from broker_config.topics import parse
from schemas.errors import RecordRefused
from schemas.records import control, group, requests, seal, status
from schemas.records.group import Trajectory, TrajectoryGroup
from schemas.records.headers import group_gist
from schemas.records.metrics import StepMetrics
from schemas.records.quarantine import Quarantined

TextOf = Callable[[Sequence[int]], str]
"""Decodes token ids: a run's tokenizer."""

SHOWN_METRICS = (
    ("reward", "train/reward", ".3f"),
    ("loss", "train/loss", ".4f"),
    ("age", "train/avg_trajectory_age", ".2f"),
    ("tokens/s", "performance/tokens_per_s", ".0f"),
    ("validation", "validation/accuracy", ".3f"),
)


def record_lines(record: Record, text_of: TextOf | None = None) -> list[str]:
    """One line; with `text_of`, the prompt and the completions of a group below it."""
    where = f"[{record.partition}]@{record.offset}"
    try:
        described = _described(record, text_of)
    except RecordRefused as refused:
        return [f"{where:<9} {record.key or '-'}  unreadable: {refused} ({len(record.value)} bytes)"]
    return [f"{where:<9} {described[0]}", *described[1:]]


def record_json(record: Record, text_of: TextOf | None = None) -> dict[str, Any]:
    """The record with its place; the arrays of a group as lists, so that other programs can read them."""
    place = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
    }
    try:
        return {**place, "value": _json_value(record, text_of)}
    except RecordRefused as refused:
        return {**place, "unreadable": str(refused), "bytes": len(record.value)}


def _topic_kind(record: Record) -> str:
    name = parse(record.topic)
    return name.kind if name is not None else "unknown"


def _is_seal(record: Record) -> bool:
    return (record.key or "").endswith("/seal")


def _described(record: Record, text_of: TextOf | None) -> list[str]:
    match _topic_kind(record):
        case "trajectories" | "validation":
            return [_seal_line(record)] if _is_seal(record) else _group_lines(group.decode(record.value), text_of)
        case "control":
            return [_control_line(control.decode(record.value))]
        case "status":
            return [_status_line(status.decode(record.value))]
        case "requests":
            return [_request_line(requests.Request.from_bytes(record.value))]
        case "metrics":
            return [_metrics_line(StepMetrics.from_bytes(record.value))]
        case "quarantine":
            return [_quarantine_line(Quarantined.from_bytes(record.value))]
        case _:
            raise RecordRefused("topic", f"{record.topic} is not a topic of a run")


def _json_value(record: Record, text_of: TextOf | None) -> Any:
    match _topic_kind(record):
        case "trajectories" | "validation":
            return _json_seal(record) if _is_seal(record) else _json_group(group.decode(record.value), text_of)
        case "unknown":
            raise RecordRefused("topic", f"{record.topic} is not a topic of a run")
        case _:
            _described(record, None)  # refuses what is not a record of its topic
            return json.loads(record.value)


# Groups and seals


def _group_lines(g: TrajectoryGroup, text_of: TextOf | None) -> list[str]:
    gist = group_gist(g)
    known = sorted({span.version for t in g.trajectories for span in t.spans})
    versions = "-".join(str(v) for v in dict.fromkeys([known[0], known[-1]])) if known else "-"
    finish = " ".join(f"{name}:{count}" for name, count in sorted(gist["finish"].items()))
    head = f"{g.request}  reward {gist['reward']:.3f} {_brief(gist['rewards'])}  len {_brief(gist['len'])}  {finish}"
    lines = [f"{head}  row {g.row}  versions {versions}  {g.producer}  {g.seconds:.2f} s"]
    if text_of is not None:
        lines.append(f"    prompt      {_quoted(text_of(g.prompt.tolist()))}")
        lines += [f"    {_trajectory_line(t, text_of)}" for t in sorted(g.trajectories, key=lambda t: -t.reward)]
    return lines


def _trajectory_line(t: Trajectory, text_of: TextOf) -> str:
    parts = " ".join(f"{name}={value:g}" for name, value in t.rewards.items()) if len(t.rewards) > 1 else ""
    mark = " (truncated)" if t.truncated else ""
    return f"{t.reward:>10.3f}  {_quoted(text_of(t.tokens.tolist()))}{mark}" + (f"  {parts}" if parts else "")


def _quoted(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


def _brief(values: Sequence[float]) -> str:
    """Runs of equal values are counted: `[0x12 1x4]`."""
    counts = Counter(values)
    if len(counts) == len(values):
        return "[" + " ".join(f"{value:g}" for value in values) + "]"
    return "[" + " ".join(f"{value:g}x{n}" if n > 1 else f"{value:g}" for value, n in sorted(counts.items())) + "]"


def _seal(record: Record) -> seal.Seal:
    """A seal of any run: the run and the version that it names are taken for right."""
    unpacked = group.unpack(record.value, seal.SCHEMA)
    run, version, slots = unpacked.get("run"), unpacked.get("version"), unpacked.get("slots")
    if not isinstance(run, str) or not isinstance(version, int) or not isinstance(slots, list):
        raise RecordRefused("malformed", "a seal without run, version or slots")
    return seal.decode(record.value, run=run, version=version, prompts_per_step=len(slots))


def _seal_line(record: Record) -> str:
    s = _seal(record)
    later = [f"s{slot:04d}/d{e.draw}/a{e.attempt}" for slot, e in sorted(s.slots.items()) if e.draw or e.attempt]
    extra = f"  later draws or attempts: {' '.join(later)}" if later else ""
    return f"v{s.version:08d}/seal  {len(s.slots)} slots  incarnation {s.incarnation}{extra}"


def _json_seal(record: Record) -> dict[str, Any]:
    s = _seal(record)
    slots = {
        str(slot): {"draw": e.draw, "attempt": e.attempt, "partition": e.partition, "offset": e.offset, "sha256": e.sha256}
        for slot, e in sorted(s.slots.items())
    }
    return {"run": s.run, "incarnation": s.incarnation, "config_digest": s.config_digest, "version": s.version, "slots": slots}


def _json_group(g: TrajectoryGroup, text_of: TextOf | None) -> dict[str, Any]:
    trajectories = []
    for t in g.trajectories:
        entry: dict[str, Any] = {
            "reward": t.reward,
            "rewards": dict(t.rewards),
            "finish": str(t.finish),
            "tokens": t.tokens.tolist(),
            "mask": t.mask.tolist(),
            "logprobs": t.logprobs.tolist(),
            "spans": [[s.version, s.start, s.end] for s in t.spans],
        }
        if text_of is not None:
            entry["text"] = text_of(t.tokens.tolist())
        trajectories.append(entry)
    value: dict[str, Any] = {
        "run": g.run,
        "kind": g.kind,
        "request": str(g.request),
        "row": g.row,
        "incarnation": g.incarnation,
        "min_version": g.min_version,
        "producer": g.producer,
        "seconds": g.seconds,
        "sampling": dict(g.sampling),
        "prompt": g.prompt.tolist(),
        "trajectories": trajectories,
    }
    if text_of is not None:
        value["prompt_text"] = text_of(g.prompt.tolist())
    return value


# The JSON topics


def _control_line(record: control.Claim | control.State) -> str:
    if isinstance(record, control.Claim):
        return f"claim  by pid {record.pid} on {record.host}  config {record.config_digest}  run {record.uuid[:8]}"
    s = record
    window = f"{min(s.window)}-{max(s.window)}" if s.window else "none"
    parts = [f"F {s.frontier if s.frontier is not None else '-'}", f"sealed through {s.sealed_through}", f"window {window}"]
    members = [f"{name}@{m.held}" + (" (draining)" if m.draining else "") for name, m in sorted(s.members.items())]
    parts.append("members " + (" ".join(members) or "none"))
    if s.round is not None:
        parts.append(f"round {s.round.number} of version {s.round.version}: {s.round.phase} ({', '.join(s.round.members)})")
    parts += [f"refused {name}: {'; '.join(why)}" for name, why in s.refused.items()]
    if s.stop is not None:
        parts.append(f"STOP at {s.stop.version}: {s.stop.reason}")
    return f"state i{s.incarnation}  " + "  ".join(parts)


def _status_line(record: object) -> str:
    match record:
        case status.Report() as r:
            answer = "joins" if r.incarnation is None else f"answers claim {r.incarnation}"
            what = f"{answer}  {r.state}  version {r.held}  capacity {r.capacity}  {r.host} pid {r.pid}"
            return f"report     {r.producer}  {what}"
        case status.Heartbeat() as h:
            doing = f"{len(h.in_hand)}/{h.capacity} requests  {h.engine_tokens} tokens"
            return f"heartbeat  {h.producer}  {h.state}  version {h.held}  {doing}"
        case status.Ack() as a:
            gap = f"  probe gap {a.probe_gap:.2g}" if a.probe_gap is not None else ""
            verdict = "ok" if a.ok else f"FAILED: {a.error}"
            return f"ack        {a.producer}  round {a.round} {a.phase} of version {a.version}  {verdict}{gap}"
        case status.Failed() as f:
            return f"failed     {f.producer}  {f.request.key}  {f.failure}: {f.reason}"
        case status.Left() as gone:
            return f"left       {gone.producer}  {gone.reason}  hands back {len(gone.unfinished)}"
        case status.Beat() as beat:
            return f"beat       {beat.number}  incarnation {beat.incarnation}" + _standing(beat)
        case status.Operator() as o:
            return f"operator   {o.action} {o.producer or ''} by {o.by}"
        case _:
            raise RecordRefused("malformed", f"a {type(record).__name__}")


def _standing(beat: status.Beat) -> str:
    window = [f"{v}: {w.filled}/{w.filled + w.assigned + w.unassigned}" for v, w in sorted(beat.window.items())]
    parts = [f"filled {', '.join(window)}"] if window else []
    parts += [f"waits for {beat.waits_for}"] if beat.waits_for else []
    return "".join(f"  {part}" for part in parts)


def _request_line(r: requests.Request) -> str:
    what = f"cancel {r.cancels}" if r.kind == "cancel" else r.kind
    sampling = f"  n {r.sampling.n}  max_new_tokens {r.sampling.max_new_tokens}" if r.sampling is not None else ""
    return f"{r.key}  {what}  to {r.producer}  row {r.row}  from version {r.min_version}{sampling}"


def _metrics_line(m: StepMetrics) -> str:
    values = [f"{name} {m.metrics[key]:{form}}" for name, key, form in SHOWN_METRICS if key in m.metrics]
    digest = f"  state {m.state_digest[:12]}" if m.state_digest else ""
    return f"step {m.step}  " + "  ".join(values) + f"  incarnation {m.incarnation}{digest}"


def _quarantine_line(q: Quarantined) -> str:
    return f"{q.topic}[{q.partition}]@{q.offset}  {q.key or '-'}  {q.reason}: {q.detail}  sha256 {q.sha256[:12]}"
