"""The cards' files over HTTP: resumed, verified, from the first of their addresses that delivers.

A file grows as `<name>.part` beside its place. `<name>.part.json` says of which version at which
address it is a part, and is locked by the process that writes. A later try asks for the rest of
that very version (RFC 9110, Range with If-Range) and starts anew where the server cannot give it.
What has arrived must have the card's checksum, or, where the card has none, be a data set that can
be read to its end; only then does it get its name. Proxies come from the usual environment
variables, and certificates are verified.
"""

import http.client
import json
import os
import re
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from tqdm import tqdm

from offline_rl.data.load import card_file, checksum_mismatch, data_folder, find_stored
from offline_rl.data.validation import find_read_errors
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import open_exclusively
from offline_rl.version import __version__

if TYPE_CHECKING:
    from envs.cards import Card, File

BLOCK = 1 << 20  # bytes; a try that gains fewer counts as failed
PASSING = {408, 425, 429, 500, 502, 503, 504}  # a server's answers that another try may change
Say = Callable[[str], object]


@dataclass(frozen=True)
class Patience:
    """With one address, before the next is tried."""

    silence_s: float = 30.0  # without an answer or a further byte
    tries: int = 4  # failed ones in a row
    pause_s: float = 1.0  # after the first failed one; doubled after each
    longest_pause_s: float = 60.0  # also where the server asks for more


class Undelivered(UserError):
    """No address of a file delivered it."""


def download(
    cards: Iterable["Card | str"],
    data_dir: str | Path | None = None,
    *,
    patience: Patience | None = None,
    show: bool = True,
) -> list[Path]:
    """Paths of all files of the cards (or their names); those not there yet are downloaded.

    show: a progress bar on a terminal, and a line for each address tried and each that failed.
    A call that was interrupted is continued. Raises UserError; of files that no address delivers
    when the others are there.
    """
    from envs.cards import CardError, UnknownName, card

    say: Say = (lambda line: tqdm.write(line, file=sys.stderr)) if show else lambda _: None
    try:
        wanted = [card(c) if isinstance(c, str) else c for c in cards]
    except (CardError, UnknownName) as error:
        raise UserError(str(error)) from None
    paths, lost = [], []
    for each in wanted:
        for split in each.files:
            try:
                paths.append(_fetch(each, split, data_dir, patience or Patience(), say, show))
            except Undelivered as error:
                lost.append(str(error))
    if lost:
        raise Undelivered(" ".join(lost))
    return paths


def _fetch(
    card: "Card", split: str, data_dir: str | Path | None, patience: Patience, say: Say, show: bool
) -> Path:
    """The path of one file, which is downloaded unless it is there."""
    file = card_file(card, split)
    if path := find_stored(card, data_dir, split=split):
        if not (file.sha256 or file.md5) and (errors := find_read_errors(path)):
            raise UserError(f"{errors[0]} Delete it and give the same command again.")
        return path
    if not file.urls:
        raise UserError(
            f"{card.name}: {file.name} is not published anywhere; see offline-rl generate --help."
        )
    target = data_folder(data_dir) / file.path
    note = target.with_name(f"{target.name}.part.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            open_exclusively(note, lambda: say(f"{file.name}: another process is at it")) as locked,
            Part(note, locked) as part,
        ):
            if not find_stored(card, data_dir, split=split):  # else the other process has done it
                _deliver(file, card.name, target, part, patience, say, show)
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}. Make room, or name another "
            f"folder with data_dir=<folder>; the same command continues."
        ) from error
    return target


def _deliver(
    file: "File", name: str, target: Path, part: "Part", patience: Patience, say: Say, show: bool
) -> None:
    """Fills the part from the first address that can and gives it its name."""
    failed = []
    for url in sorted(file.urls, key=lambda url: url != part.version.url):  # what was begun first
        try:
            _exhaust(url, file, part, patience, say, show)
        except _Failure as failure:
            say(f"{url}: {failure}")
            failed.append(f"{url}: {failure}")
        else:
            part.finish(target)
            return
    raise Undelivered(
        f"{name}: no address delivered {file.name} ({'; '.join(failed)}). Try again later, or get "
        f"the file in another way and save it as {target}."
    )


def _exhaust(
    url: str, file: "File", part: "Part", patience: Patience, say: Say, show: bool
) -> None:
    """Tries one address until the part is whole and verified. Raises _Failure."""
    say(f"{file.name}: from {url}")
    failures, most = 0, part.size
    while True:
        resumed = part.size > 0
        try:
            _receive(url, file, part, patience.silence_s, show)
            _verify(file, part, passing=resumed)
            return
        except _Failure as failure:
            failures = 1 if part.size >= most + BLOCK else failures + 1
            most = max(most, part.size)
            if not failure.passing or failures >= patience.tries:
                raise
            pause_s = max(patience.pause_s * 2 ** (failures - 1), failure.pause_s)
            pause_s = min(pause_s, patience.longest_pause_s)
            say(f"{url}: {failure}; again in {pause_s:.3g} s")
            time.sleep(pause_s)


def _receive(url: str, file: "File", part: "Part", silence_s: float, show: bool) -> None:
    """One request for what the part lacks. Raises _Failure where that is not all of it."""
    if part.version.url != url or not part.version.mark:  # of elsewhere, or impossible to tell
        offset = 0
    elif part.size == part.version.size_bytes:
        return
    else:
        offset = part.size
    with _answer(url, part, offset, silence_s) as answer:
        size = _size(answer, file)
        if offset and answer.status == 206:
            same_mark = _mark(answer) in (None, part.version.mark)
            if not same_mark or (_start(answer), size) != (offset, part.version.size_bytes):
                part.begin(Version())
                raise _Failure("the file has changed meanwhile", passing=True)
        elif answer.status == 200:
            part.begin(Version(url, _mark(answer), size))
        else:
            raise _Failure(f"unexpected answer {answer.status} {answer.reason}")
        part.expect(size)
        with tqdm(
            desc=file.name,
            total=size,
            initial=part.size,
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
            disable=None if show else True,
        ) as bar:
            while size is None or part.size < size:
                try:
                    block = answer.read1(BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    broken = _said(error, silence_s)
                    raise _Failure(f"{broken}, after {part.size:,} bytes", passing=True) from error
                if not block:
                    break
                part.write(block)
                bar.update(len(block))
    if size is not None and part.size < size:
        raise _Failure(f"broke off after {part.size:,} of {size:,} bytes", passing=True)


def _answer(url: str, part: "Part", offset: int, silence_s: float) -> http.client.HTTPResponse:
    """The server's answer to a request for the bytes from `offset` on."""
    request = urllib.request.Request(url, headers={"User-Agent": f"offline-rl/{__version__}"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", part.version.mark or "")
    try:
        answer: http.client.HTTPResponse = _opener().open(request, timeout=silence_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and offset:
                part.begin(Version())
                raise _Failure("the file has become shorter", passing=True) from None
            after = error.headers.get("Retry-After") or ""
            raise _Failure(
                " ".join(f"{error.code} {error.reason}".split()),
                passing=error.code in PASSING,
                pause_s=float(after) if after.isdigit() else 0.0,
            ) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        transport = isinstance(reason, OSError | http.client.HTTPException)
        passing = transport and not isinstance(reason, ssl.SSLCertVerificationError)
        raise _Failure(_said(reason, silence_s), passing=passing) from error
    return answer


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS only, wherever an address may lead."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _Redirects,
    ):
        opener.add_handler(handler())
    return opener


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(newurl, code, f"moved to {newurl}: refused", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _size(answer: http.client.HTTPResponse, file: "File") -> int | None:
    """Bytes of the whole file. Raises _Failure where the card says otherwise."""
    if (coding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise _Failure(f"sends the file in another coding ({coding})")
    if answer.status == 206:
        total = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        size = int(total[1]) if total else None
    else:
        size = answer.length
    if size is not None and file.size_bytes not in (None, size):
        raise _Failure(f"has {size:,} bytes, where the card says {file.size_bytes:,}")
    return size


def _start(answer: http.client.HTTPResponse) -> int | None:
    start = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(start[1]) if start else None


def _mark(answer: http.client.HTTPResponse) -> str | None:
    """What If-Range may name a version by: a strong ETag, else the date of its last change."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified")


def _verify(file: "File", part: "Part", *, passing: bool) -> None:
    """Raises _Failure, with the part thrown away, where it is not the card's file."""
    if file.size_bytes not in (None, part.size):
        sentence = f"sent {part.size:,} bytes, where the card says {file.size_bytes:,}"
    elif file.sha256 or file.md5:
        difference = checksum_mismatch(part.path, file)
        sentence = f"sent another file: {difference}" if difference else ""
    else:
        errors = find_read_errors(part.path)
        sentence = errors[0].replace(str(part.path), file.name) if errors else ""
    if sentence:
        part.begin(Version())
        raise _Failure(sentence, passing=passing)


def _said(error: object, silence_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"silent for {silence_s:g} s"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


@dataclass(frozen=True)
class Version:
    """Which file a part is a part of."""

    url: str | None = None
    mark: str | None = None  # ETag or date, for If-Range
    size_bytes: int | None = None


class Part:
    """`<name>.part`, and the note beside it, which this process has locked."""

    def __init__(self, note: Path, locked: BinaryIO) -> None:
        self.path = note.with_suffix("")
        self._note, self._locked = note, locked
        try:
            self.version = Version(**json.loads(locked.read() or b"{}"))
        except (TypeError, ValueError):  # cut short by a crash, or another program's
            self.version = Version()
        self._file = self.path.open("ab", buffering=0)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def begin(self, version: Version) -> None:
        """Throws away what there is."""
        self._file.truncate(0)
        self._locked.seek(0)
        self._locked.truncate()
        self._locked.write(json.dumps(asdict(version)).encode())
        self.version = version

    def expect(self, size: int | None) -> None:
        """Raises OSError where the disk has no room for `size` bytes in all."""
        free = shutil.disk_usage(self.path.parent).free
        if size is not None and size - self.size > free:
            raise OSError(f"{size - self.size:,} bytes are to come and {free:,} are free")

    def write(self, block: bytes) -> None:
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    def finish(self, target: Path) -> None:
        os.fsync(self._file.fileno())
        self.path.rename(target)
        self._note.unlink()

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left where nothing has arrived."""
        if not self.size:
            self.path.unlink()
            self._note.unlink()
        self._file.close()


class _Failure(Exception):
    """What an address said instead of delivering. passing: another try may do better."""

    def __init__(self, said: str, *, passing: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(said)
        self.passing, self.pause_s = passing, pause_s
