"""The generator of the alert and recording rules: `python -m alerts.src`.

A configuration goes in, plain Prometheus rule files come out. It never imports the exporter: rules are made
where the exporter is not installed. That both speak of the same metrics and findings is held by tests/alerts.
"""
