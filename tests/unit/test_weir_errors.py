"""What `weir` says when the file system fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_an_error_of_the_file_system_is_one_plain_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = "import sys; from launch.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "check", str(tmp_path / "file" / "run.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: [Errno 20] Not a directory: '{tmp_path / 'file' / 'run.yaml'}'\n"
