"""``make vectors``: the only writer of the golden files."""

from tests.vectors.golden import FOLDER, encoded, path
from tests.vectors.states import STATES

FOLDER.mkdir(parents=True, exist_ok=True)
for old in FOLDER.glob("*.s4"):
    old.unlink()
for name, state in STATES.items():
    nbytes = path(name).write_bytes(encoded(state()))
    print(f"{path(name).relative_to(FOLDER.parent)}: {nbytes:,} bytes")
