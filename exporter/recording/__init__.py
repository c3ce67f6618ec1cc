"""The command `record`: a few looks at this node, with the raw truth behind them, into one file.

In: the sources of a real node. Out: gzipped JSON with, for each look, the Snapshot as it was judged and the
raw material that it was parsed from: the kubelet's replies, the API's objects, the names of log directories,
and the texts of /proc. Replayed through the parsers it must give that Snapshot again (tests/sources).

It must never keep what no source reads: objects are condensed to a list of fields, and of a process no
command line and no environment is looked at. `masked` gives names and UUIDs pseudonyms, so that a file can be
sent. docs/recordings.md describes the format.
"""

from exporter.recording.files import FORMAT, RecordingError, load, save
from exporter.recording.look import record
from exporter.recording.masking import masked

__all__ = ["FORMAT", "RecordingError", "load", "masked", "record", "save"]
