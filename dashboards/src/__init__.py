"""The dashboards, as code: what they ask, what they draw, and the JSON that Grafana imports.

Metric names of the exporter's catalog and the alerts of its rules come in, four dashboards in Grafana's
classic model go out. Nothing here may make a missing collection look like a zero: what is not known is asked
for by name and drawn as "unknown".
"""
