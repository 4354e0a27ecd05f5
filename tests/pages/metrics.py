"""The reference of the metrics, from their definitions."""

from lakewarden.agent.metrics.agent_metrics import AgentMetrics

_INTRODUCTION = """# Metrics

For operators who write alerts and dashboards. Here you find every metric of the agent. Generated from
`agent/metrics/agent_metrics.py` by `python -m tests.pages`; don't edit.

The agent answers `/metrics` at `http_listen`, in the text format of Prometheus or in OpenMetrics: see
[health](run.md#health). [`deploy/prometheus`](../deploy/prometheus/lakewarden.rules.yml) has alert rules,
[`deploy/grafana`](../deploy/grafana/lakewarden.json) a dashboard, and [the run-books](runbooks.md) say what to do.

- Counters and histograms begin at 0 with the process. They count what this process has decided, and nothing of a replay.
- The values of each label are bounded. `table` names the first 100 tables that something is
  counted of; all others are `other`. No label has transactions, writers or grants: `lakewarden status` and
  `lakewarden explain` show these.
- Each table belongs to one agent at a time, so sums over the agents count nothing twice.
- `process_…` are the usual metrics of the process, memory and processor time among them.
"""


def render() -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels) or '–'} | {each.text} |"
        for each in AgentMetrics().descriptions
    ]
    return "\n".join(
        [_INTRODUCTION, "| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    )
