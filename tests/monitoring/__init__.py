"""The alert rules and the dashboard in `deploy/`, and a real Prometheus that scrapes a real agent."""
