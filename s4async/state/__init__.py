"""Training state <-> a skeleton of plain bytes and regions of tensor bytes. No I/O, no pickle on the default path."""

from s4async.state.into import Match, match
from s4async.state.matching import LoadReport
from s4async.state.regions import Source
from s4async.state.skeleton import Leaf, Skeleton
from s4async.state.tree import Capture, capture

__all__ = ["Capture", "Leaf", "LoadReport", "Match", "Skeleton", "Source", "capture", "match"]
