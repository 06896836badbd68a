"""Downloads of the files of cards over HTTP, with several URLs per file, resuming and verification.

Data sets of LeRobot and Minari are downloaded by the clients of these libraries.

A file is written as `<name>.part` next to its final path. `<name>.part.json` holds the URL and
version, and is locked by the process that writes. A later attempt requests the rest of the same
version (RFC 9110, Range with If-Range), and starts again if the server cannot send it. A complete
file is verified by the card's checksum; if the card has none, it must be readable as a data set.
Then it is renamed. Proxies are taken from the usual environment variables. Certificates are
verified.
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
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from tqdm import tqdm

from offline_rl.data.load import (
    LIBRARIES,
    card_file,
    checksum_mismatch,
    data_folder,
    find_stored,
    lerobot_home,
)
from offline_rl.data.validation import find_read_errors
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import open_exclusively
from offline_rl.version import __version__

if TYPE_CHECKING:
    from envs.cards import Card, File

# Bytes per read. If an attempt adds at least a block before it fails, the count of failures in a
# row restarts at 1.
BLOCK = 1 << 20
TEMPORARY = {408, 425, 429, 500, 502, 503, 504}  # HTTP status codes after which a retry may succeed
Log = Callable[[str], object]


@dataclass(frozen=True)
class Patience:
    """Limits for one URL, after which the next one is tried."""

    silence_s: float = 30.0  # seconds without a response or further data
    tries: int = 4  # failed attempts in a row
    pause_s: float = 1.0  # seconds after the first failed attempt; doubled after each one
    longest_pause_s: float = 60.0  # maximum, even if the server requests a longer pause


class Undelivered(UserError):
    """Error if a file cannot be downloaded from any of its URLs."""


def download(
    cards: Iterable["Card | str"],
    data_dir: str | Path | None = None,
    *,
    patience: Patience | None = None,
    show: bool = True,
) -> list[Path]:
    """Download the missing files of the cards; return the paths of all their files.

    cards: cards or names of cards, or names of libraries' data sets (`lerobot:<repository>`,
    `minari:<id>`), which the client of the library downloads to its folder. show: print a progress
    bar on a terminal, and a line for each URL and each failure. Interrupted downloads are resumed.
    Raises UserError; if a file cannot be downloaded, the other files are downloaded first.
    """
    from envs.cards import CardError, UnknownName, card

    log: Log = (lambda line: tqdm.write(line, file=sys.stderr)) if show else lambda _: None
    try:
        requested = [card(c) if isinstance(c, str) and not is_of_library(c) else c for c in cards]
    except (CardError, UnknownName) as error:
        raise UserError(str(error)) from None
    paths, failed = [], []
    for one in requested:
        if isinstance(one, str):
            paths.append(download_by_library(one, data_dir))
            continue
        for split in one.files:
            for file in card_file(one, split).shards:
                try:
                    paths.append(_fetch(one, file, data_dir, patience or Patience(), log, show))
                except Undelivered as error:
                    failed.append(str(error))
    if failed:
        raise Undelivered(" ".join(failed))
    return paths


def is_of_library(source: str) -> bool:
    """Return True if `source` names a data set of a library, such as `minari:<id>`."""
    return source.partition(":")[0] in CLIENTS


def download_by_library(source: str, data_dir: str | Path | None = None) -> Path:
    """Download a data set with the client of its library; return its folder.

    source: `lerobot:<repository>` or `minari:<id>`. The client resumes an interrupted download.
    Raises UserError.
    """
    library, _, name = source.partition(":")
    client = CLIENTS[library]
    if data_dir is not None:
        raise UserError(
            f"data_dir={data_dir} has no effect on {source}, which is stored in the folder of "
            f"{library}. Leave it out, or set {client.variable} to another folder."
        )
    try:
        module = import_module(client.package)
    except ImportError:
        raise UserError(
            f"{source} needs the package {client.package}. Run: pip install {client.install}"
        ) from None
    try:
        client.download(module, name)
    except Exception as error:  # of many kinds, which differ between versions of the package
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{source} could not be downloaded ({reason:.300}). Check the name and the connection, "
            "and run the same command again."
        ) from error
    return LIBRARIES[library](name)


def _download_lerobot(hub: Any, repository: str) -> None:
    address = os.environ.get("HF_ENDPOINT")
    folder = lerobot_home() / repository
    hub.snapshot_download(repository, repo_type="dataset", local_dir=folder, endpoint=address)
    if not (folder / "meta" / "info.json").is_file():
        raise UserError("it has no meta/info.json, so it is not a LeRobotDataset")


@dataclass(frozen=True)
class Client:
    """The package that downloads the data sets of a library."""

    package: str
    install: str  # argument of pip install
    variable: str  # environment variable with the library's folder
    download: Callable[[Any, str], object]  # (package, name of the data set)


CLIENTS = {
    "lerobot": Client("huggingface_hub", "huggingface_hub", "HF_LEROBOT_HOME", _download_lerobot),
    "minari": Client(
        "minari", '"minari[hdf5,hf]"', "MINARI_DATASETS_PATH", lambda m, id: m.download_dataset(id)
    ),
}


def _fetch(
    card: "Card",
    file: "File",
    data_dir: str | Path | None,
    patience: Patience,
    log: Log,
    show: bool,
) -> Path:
    """Return the path of one file; download it if it is missing."""
    if path := find_stored(card, data_dir, file):
        if not (file.sha256 or file.md5) and (errors := find_read_errors(path)):
            raise UserError(f"{errors[0]} Delete the file and run the same command again.")
        return path
    if not file.urls:
        remedy = card.note or "To generate it, see offline-rl generate --help."
        raise UserError(f"{card.name}: {file.name} is not published. {remedy}")
    target = data_folder(data_dir) / file.path
    progress_file = target.with_name(f"{target.name}.part.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            open_exclusively(
                progress_file, lambda: log(f"{file.name}: another process is downloading it")
            ) as locked,
            Part(progress_file, locked) as part,
        ):
            if not find_stored(card, data_dir, file):  # else the other process has finished
                _download_file(file, card.name, target, part, patience, log, show)
    except OSError as error:
        raise UserError(
            f"{target} cannot be written: {error.strerror or error}. Free some space, or choose "
            f"another folder with data_dir=<folder>. The same command resumes the download."
        ) from error
    return target


def _download_file(
    file: "File", name: str, target: Path, part: "Part", patience: Patience, log: Log, show: bool
) -> None:
    """Download from the first URL that works, and rename the part to `target`."""
    failed = []
    for url in sorted(file.urls, key=lambda url: url != part.version.url):  # the part's URL first
        try:
            _try_url(url, file, part, patience, log, show)
        except _Failure as failure:
            log(f"{url}: {failure}")
            failed.append(f"{url}: {failure}")
        else:
            part.finish(target)
            return
    raise Undelivered(
        f"{name}: {file.name} could not be downloaded ({'; '.join(failed)}). Try again later, or "
        f"get the file in another way and save it as {target}."
    )


def _try_url(
    url: str, file: "File", part: "Part", patience: Patience, log: Log, show: bool
) -> None:
    """Request one URL repeatedly until the part is complete and verified. Raises _Failure."""
    log(f"{file.name}: from {url}")
    failures, max_size = 0, part.size
    while True:
        resumed = part.size > 0
        try:
            _receive(url, file, part, patience.silence_s, show)
            _verify(file, part, temporary=resumed)  # a wrong resumed file is downloaded again
            return
        except _Failure as failure:
            failures = 1 if part.size >= max_size + BLOCK else failures + 1
            max_size = max(max_size, part.size)
            if not failure.temporary or failures >= patience.tries:
                raise
            pause_s = max(patience.pause_s * 2 ** (failures - 1), failure.pause_s)
            pause_s = min(pause_s, patience.longest_pause_s)
            log(f"{url}: {failure}; again in {pause_s:.3g} s")
            time.sleep(pause_s)


def _receive(url: str, file: "File", part: "Part", silence_s: float, show: bool) -> None:
    """Send one request for the missing bytes. Raises _Failure if some are still missing."""
    if part.version.url != url or not part.version.mark:  # the part may be of another version
        offset = 0
    elif part.size == part.version.size_bytes:
        return
    else:
        offset = part.size
    with _request(url, part, offset, silence_s) as response:
        size = _total_size(response, file)
        if offset and response.status == 206:
            same_mark = _version_mark(response) in (None, part.version.mark)
            if not same_mark or (_first_byte(response), size) != (offset, part.version.size_bytes):
                part.restart(Version())
                raise _Failure("the file has changed meanwhile", temporary=True)
        elif response.status == 200:
            part.restart(Version(url, _version_mark(response), size))
        else:
            raise _Failure(f"unexpected response {response.status} {response.reason}")
        part.check_space(size)
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
                    block = response.read1(BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    reason = _describe_error(error, silence_s)
                    text = f"{reason}, after {part.size:,} bytes"
                    raise _Failure(text, temporary=True) from error
                if not block:
                    break
                part.write(block)
                bar.update(len(block))
    if size is not None and part.size < size:
        raise _Failure(f"ended after {part.size:,} of {size:,} bytes", temporary=True)


def _request(url: str, part: "Part", offset: int, silence_s: float) -> http.client.HTTPResponse:
    """Request the bytes from `offset` on and return the server's response."""
    request = urllib.request.Request(url, headers={"User-Agent": f"offline-rl/{__version__}"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", part.version.mark or "")
    try:
        response: http.client.HTTPResponse = _opener().open(request, timeout=silence_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and offset:
                part.restart(Version())
                raise _Failure("the file has become shorter", temporary=True) from None
            retry_after = error.headers.get("Retry-After") or ""
            raise _Failure(
                " ".join(f"{error.code} {error.reason}".split()),
                temporary=error.code in TEMPORARY,
                pause_s=float(retry_after) if retry_after.isdigit() else 0.0,
            ) from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        transport = isinstance(reason, OSError | http.client.HTTPException)
        temporary = transport and not isinstance(reason, ssl.SSLCertVerificationError)
        raise _Failure(_describe_error(reason, silence_s), temporary=temporary) from error
    return response


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that uses only HTTP and HTTPS, also after redirects."""
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


def _total_size(response: http.client.HTTPResponse, file: "File") -> int | None:
    """Return the size of the complete file. Raises _Failure if the card states another one."""
    if (coding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise _Failure(f"sends the file with the content encoding {coding}, which is not supported")
    if response.status == 206:
        total = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("Content-Range", ""))
        size = int(total[1]) if total else None
    else:
        size = response.length
    if size is not None and file.size_bytes not in (None, size):
        raise _Failure(f"has {size:,} bytes, but the card states {file.size_bytes:,}")
    return size


def _first_byte(response: http.client.HTTPResponse) -> int | None:
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(start[1]) if start else None


def _version_mark(response: http.client.HTTPResponse) -> str | None:
    """Return the identifier of the version for If-Range: a strong ETag, or else Last-Modified."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _verify(file: "File", part: "Part", *, temporary: bool) -> None:
    """Check the part. If it is not the card's file, discard it and raise _Failure."""
    if file.size_bytes not in (None, part.size):
        sentence = f"sent {part.size:,} bytes, but the card states {file.size_bytes:,}"
    elif file.sha256 or file.md5:
        difference = checksum_mismatch(part.path, file)
        sentence = f"sent another file: {difference}" if difference else ""
    else:
        errors = find_read_errors(part.path)
        sentence = errors[0].replace(str(part.path), file.name) if errors else ""
    if sentence:
        part.restart(Version())
        raise _Failure(sentence, temporary=temporary)


def _describe_error(error: object, silence_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no data for {silence_s:g} s"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


@dataclass(frozen=True)
class Version:
    """The version of the file that a part belongs to."""

    url: str | None = None
    mark: str | None = None  # ETag or date of the version, for If-Range
    size_bytes: int | None = None


class Part:
    """The file `<name>.part` and its record `<name>.part.json`, which this process has locked."""

    def __init__(self, progress_file: Path, locked: BinaryIO) -> None:
        self.path = progress_file.with_suffix("")
        self._progress_file, self._locked = progress_file, locked
        try:
            self.version = Version(**json.loads(locked.read() or b"{}"))
        except (TypeError, ValueError):  # incomplete after a crash, or written by another program
            self.version = Version()
        self._file = self.path.open("ab", buffering=0)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def restart(self, version: Version) -> None:
        """Discard the data and record a new version."""
        self._file.truncate(0)
        self._locked.seek(0)
        self._locked.truncate()
        self._locked.write(json.dumps(asdict(version)).encode())
        self.version = version

    def check_space(self, size: int | None) -> None:
        """Raise OSError if the disk has no space for a complete file of `size` bytes."""
        free = shutil.disk_usage(self.path.parent).free
        if size is not None and size - self.size > free:
            raise OSError(f"{size - self.size:,} more bytes are needed and {free:,} are free")

    def write(self, block: bytes) -> None:
        """Append a block."""
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    def finish(self, target: Path) -> None:
        """Flush the part to disk, rename it to `target`, and remove the record."""
        os.fsync(self._file.fileno())
        self.path.rename(target)
        self._progress_file.unlink()

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the part; remove it if it is empty."""
        if not self.size:
            self.path.unlink()
            self._progress_file.unlink()
        self._file.close()


class _Failure(Exception):
    """Raised when a URL does not deliver the file; temporary: a retry may succeed."""

    def __init__(self, reason: str, *, temporary: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.temporary, self.pause_s = temporary, pause_s
