"""How an outcome reads: in the failure file, and as the last thing on the screen. Pure."""

from __future__ import annotations

from collections.abc import Callable

from muster.types.masking import Masker
from muster.types.names import counted
from muster.types.outcome import Failed, Outcome, RankFailure, Stopped, Succeeded, signal_name
from muster.types.plain import printable, shortened, wrapped

MAX_FAILURE_BYTES = 1024  # the platform shows no more
_HEADLINE_BYTES = 480
_FIX_BYTES = 240
_TRACEBACK = "Traceback (most recent call last):"
_BLOCK_LINES = 40


def failure_text(outcome: Outcome, masker: Masker) -> str:
    """The failure file of an outcome: at most 1,024 bytes of UTF-8; "" where none is due.

    First line the headline, second the fix, for a script's failure a third for scrapers, then the
    newest lines of the evidence that fit.
    """
    if isinstance(outcome, Succeeded) or not outcome.headline:
        return ""
    lines = [clip(_one_line(printable(masker.mask(outcome.headline))), _HEADLINE_BYTES)]
    tail = ""
    if isinstance(outcome, Failed):
        if outcome.fix:
            fix = "; ".join(filter(None, [outcome.fix, _log(outcome.first)]))
            lines.append("Fix: " + clip(_one_line(printable(masker.mask(fix))), _FIX_BYTES))
        if outcome.first is not None:
            lines.append(f"ExecuteUserScriptError: ExitCode {outcome.first.status}")
        tail = (outcome.first.tail if outcome.first else "") or outcome.detail
    text = printable("\n".join(lines) + "\n")
    room = MAX_FAILURE_BYTES - len(text.encode())
    return text + newest(printable(masker.mask(tail)).rstrip() + "\n", room).lstrip("\n")


def failure_block(outcome: Outcome, masker: Masker) -> str:
    """What a person sees last: who failed, its last traceback, where its log lies, what it cost.

    Ends without a newline. One line for an outcome that is no failure.
    """
    lines = _block(outcome, lambda text: printable(masker.mask(text)))
    return "\n".join(map(wrapped, lines))


def _block(outcome: Outcome, clean: Callable[[str], str]) -> list[str]:
    """The block's lines; those that are indented are a rank's. Text is made clean before it is
    taken apart: a line end that is hidden in it makes no line."""
    if isinstance(outcome, Succeeded):
        return [f"SUCCEEDED {clean(outcome.headline)}"]
    if isinstance(outcome, Stopped):
        lines = [f"STOPPED by {clean(outcome.by)}, exit code {outcome.exit_code}"]
        return [*lines, *([clean(outcome.headline)] if outcome.headline else [])]
    first = outcome.first
    lines = (
        [f"FAILED {_line(clean, outcome.headline)}"] if first is None else _of_rank(first, clean)
    )
    if outcome.detail:
        lines += [f"  {line}" for line in clean(outcome.detail).rstrip().split("\n")]
    if outcome.fix:
        lines.append(f"Fix: {_line(clean, outcome.fix)}")
    if log := _log(first):
        lines.append(_line(clean, log))
    lines += _others(outcome)
    lines.append(f"exit code {outcome.exit_code}{_why_another(outcome)}")
    return lines


def _line(clean: Callable[[str], str], text: str) -> str:
    return _one_line(clean(text))


def _why_another(outcome: Failed) -> str:
    """Says so when the job's code is not what a shell would say of the rank."""
    first = outcome.first
    if first is None or outcome.exit_code in (first.status, 128 - first.status):
        return ""
    return f" (muster keeps {describe_status(first.status)} for outcomes of its own)"


def _log(first: RankFailure | None) -> str:
    """Where there is more, and on which host unless the path says it."""
    if first is None or not first.log:
        return ""
    where = "" if f"/{first.host}/" in first.log else f" on {first.host}"
    return f"all that it wrote: {first.log}{where}"


def _of_rank(first: RankFailure, clean: Callable[[str], str]) -> list[str]:
    reason = _line(clean, first.note or first.summary) or describe_status(first.status)
    lines = [f"FAILED {first.host} rank {first.rank}: {reason}"]
    lines += [shortened(f"  {line}") for line in _last_traceback(clean(first.tail))]
    if first.note or first.summary:
        lines.append(f"rank {first.rank} ended: {describe_status(first.status)}")
    return lines


def _others(outcome: Failed) -> list[str]:
    lines = []
    if outcome.also_failed:
        what = "more rank" if outcome.first else "more host"
        lines.append(f"{counted(outcome.also_failed, what)} failed after it")
    if outcome.stopped_ranks:
        were = "was" if outcome.stopped_ranks == 1 else "were"
        lines.append(f"{counted(outcome.stopped_ranks, 'rank')} {were} stopped by muster")
    return lines


def describe_status(status: int) -> str:
    """An exit code, or minus a signal, in words."""
    if status >= 0:
        return f"exit code {status}"
    number, name = f"signal {-status}", signal_name(-status)
    return f"killed by {number}" if name == number else f"killed by {number} ({name})"


def _last_traceback(tail: str) -> list[str]:
    lines = tail.rstrip().split("\n") if tail else []
    starts = [place for place, line in enumerate(lines) if line.strip() == _TRACEBACK]
    shown = lines[starts[-1] :] if starts else lines
    if len(shown) > _BLOCK_LINES:
        shown = [f"... {len(shown) - _BLOCK_LINES} lines", *shown[-_BLOCK_LINES:]]
    return shown


def newest(text: str, room: int) -> str:
    """The last whole lines that fit in `room` bytes, or the end of a last line that does not."""
    data = text.encode()
    if len(data) <= room:
        return text
    if room <= 0:
        return ""
    kept = data[-room:]
    if data[-room - 1 : -room] != b"\n":  # a cut inside a line: drop that line if others remain
        _, _, whole = kept.partition(b"\n")
        kept = whole or kept
    return kept.decode(errors="ignore")


def clip(text: str, limit: int) -> str:
    """At most `limit` bytes, cut on a character boundary with an ellipsis."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[: limit - 3].decode(errors="ignore") + "..."


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()
