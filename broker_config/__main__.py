"""python -m broker_config fetch|start|stop|status|wrappers"""

from __future__ import annotations

from broker_config.local.cli import main

main()
