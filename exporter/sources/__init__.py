"""One module per source. Each reads one thing, returns records of `exporter.model`, and raises only
`SourceError`.
"""
