"""What a measurement found, and the page that says it: two files side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_json, write_text


def written(
    measure: Callable[[], tuple[Path, dict[str, Any]]], page: Callable[[dict[str, Any]], str]
) -> int:
    """0: measured and written, with the machine; 2: the user's mistake, said on standard error."""
    try:
        file, found = measure()
        make_folder(file.parent)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    found |= {"machine": hardware.description() | {"commit": hardware.commit()}}
    write_json(file, found)
    write_text(file.with_suffix(".md"), page(found).rstrip() + "\n")
    print(page(found))
    return 0
