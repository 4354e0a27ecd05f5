"""The modules of the demo are scripts beside each other."""

import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "docs" / "examples" / "demo"
sys.path.insert(0, str(DEMO))
