"""The custom MPI options of a request, read by shell rules against an allow-list.

Pure, and used twice: while reading, so that every problem is reported before anything starts, and
by the plan, which turns what was read into words for the mpirun at hand. Promises: S06, B31.
"""

from __future__ import annotations

import re

from muster.types import mpi_rules as rules
from muster.types.distribution import Distribution, Mpi
from muster.types.errors import Problem
from muster.types.values import NamedTuple
from muster.types.words import split_words

MAX_TEXT = 32 << 10  # characters; CreateTrainingJob allows a hyperparameter 2,500
ENOUGH = 20  # problems that are reported
RAW_OPTIONS = "MUSTER_MPI_RAW_OPTIONS"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LETTERS = re.compile(r"[A-Za-z0-9_.]+")
_SHOWN = 60
_SWITCHES = {"OMPI": "mca", "PRTE": "prtemca", "PMIX": "pmixmca"}


class Option(NamedTuple):
    """One option. `switch`: with its dashes. `name`: of a parameter, else "". `value`: or None.

    `raw`: nothing is known of it; `values` are the words after it.
    """

    switch: str
    name: str = ""
    value: str | None = None
    raw: bool = False
    values: tuple[str, ...] = ()


class MpiRequest(NamedTuple):
    """What a text asks for. `variables`: `-x NAME=VALUE`, each name once.

    `warnings`: lines for the log. `problems`: why the text cannot be used.
    """

    given: tuple[Option, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_request(text: str, where: str, *, raw: bool = False, several: bool = True) -> MpiRequest:
    """All that `text` asks for, and all that is wrong with it.

    `where`: the hyperparameter, for problems. `raw`: unknown options pass. `several`:
    the job has more than one host, so that ranks can be spread over them in more ways than one.
    """
    reader = _Reader(where, raw, several)
    words = reader.split(text)
    while words and len(reader.problems) < ENOUGH:
        reader.take(words)
    return MpiRequest(
        tuple(reader.given.values()),
        tuple(reader.variables.items()),
        tuple(reader.warnings()),
        tuple(reader.problems),
    )


def asked_variables(distribution: Distribution) -> dict[str, str]:
    """What `-x NAME=VALUE` asks for, as far as it can be read: some of it may be secret."""
    if not isinstance(distribution, Mpi) or not distribution.custom_options:
        return {}
    return dict(read_request(distribution.custom_options, "").variables)


class _Reader:
    def __init__(self, where: str, raw: bool, several: bool) -> None:
        self.given: dict[tuple[str, str], Option] = {}
        self.variables: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._where = where
        self._raw = raw
        self._several = several
        self._said: list[str] = []
        self._unset: list[str] = []

    def split(self, text: str) -> list[str]:
        """The words in reverse order, so that the next one is the last of the list."""
        if len(text) > MAX_TEXT:
            self._refuse(f"{len(text)} characters, at most {MAX_TEXT:,} are allowed", "shorten it")
            return []
        try:
            return split_words(text)[::-1]
        except ValueError as error:
            self._refuse(str(error), "close it, remove it, or put a backslash before it")
            return []

    def take(self, words: list[str]) -> None:
        """Takes one option and its values from the words."""
        word = words.pop()
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            what = f"{_short(word)} is not an option: mpirun would take it for the program to start"
            self._refuse(what, "quote values that hold spaces, or remove it")
            return
        if equals:
            words.append(value)
        name = rules.ALIASES.get(name, name)
        if name == "x":
            self._take_variable(words)
        elif name == "NCCL_DEBUG":
            level = self._value(name, words)
            if level is not None:
                self.variables["NCCL_DEBUG"] = level
        elif name in rules.MCA:
            self._take_parameter(name, words)
        elif name in rules.REFUSED:
            refusal = rules.REFUSED[name]
            del words[len(words) - (refusal.values if not equals else 1) :]
            self._refuse(f"{word.partition('=')[0]} is not allowed: {refusal.why}", "remove it")
        else:
            self._take_option(name, word, words, bool(equals))

    def warnings(self) -> list[str]:
        """Lines for the log, each once."""
        if self._unset:
            names = ", ".join(dict.fromkeys(self._unset))
            self._say(f"-x {names} carries no value: scripts have their own host's environment")
        return list(dict.fromkeys(self._said))

    def _take_option(self, name: str, word: str, words: list[str], with_value: bool) -> None:
        switch = f"--{name}"
        if name in rules.PLACING or name in ("display", "output"):
            value = self._value(name, words)
            if value is not None:
                self._place(name, value)
        elif name in rules.FLAGS and not with_value:
            self._keep(Option(switch))
        elif name in rules.NOTHING and not with_value:
            pass
        elif name in rules.SLOTS and not with_value:
            self._say(f"{switch} is left out: every rank has its slot")
        elif name in rules.OUTPUT and not with_value:
            self._say_output(switch)
        else:
            values = []  # bare words after it are most likely its values
            if with_value:
                values.append(words.pop())
            while words and not words[-1].startswith("-"):
                values.append(words.pop())
            if self._raw:
                self._take_raw(name, word.partition("=")[0], tuple(values))
            else:
                self._refuse_unknown(name, word.partition("=")[0])

    def _take_raw(self, name: str, word: str, values: tuple[str, ...]) -> None:
        """An unknown option, unless mpirun would take it for one that is known."""
        whole = rules.shortened_from(name)
        if whole:
            what = f"{_short(word)[1:-1]} is not allowed: mpirun may take it for --{whole}"
            self._refuse(what, "write options in full")
        elif not word.startswith("--") or word.startswith("---"):
            what = f"{_short(word)[1:-1]} is not allowed: mpirun may take it for a row of letters"
            self._refuse(what, f"write --{_short(name)[1:-1]}")
        elif any(value.startswith("-") for value in values):
            self._refuse(f"{_short(word)[1:-1]} may not have an option as its value", "remove it")
        else:
            self._keep(Option(word, raw=True, values=values))

    def _place(self, name: str, value: str) -> None:
        """An option whose value is one of a few words, with modifiers after colons or commas."""
        if name == "output":
            unknown = [part for part in value.split(",") if part not in ("tag", "timestamp")]
            if unknown:
                self._refuse(f"--output {_short(value)} is not allowed: logs are muster's", "")
            else:
                self._say_output(f"--output {value}")
            return
        if name == "display":
            parts = value.lower().split(",")
        else:
            parts = [value.lower().partition(":")[0] or "slot"]
        known: tuple[str, ...] = rules.DISPLAYS if name == "display" else rules.PLACING[name]
        wrong = next((part for part in parts if part not in known), None)
        in_turns = name in ("map-by", "rank-by") and wrong == "node"
        if in_turns and not self._several:
            return  # on one host this is by slot
        if in_turns or (name == "rank-by" and wrong):
            what = f"--{name} {_short(value)} is not allowed: ranks are numbered host after host"
            self._refuse(what, "remove it")
        elif wrong is not None:
            guess = _nearest(wrong, known)
            self._refuse(f"--{name}: unknown value {_short(value)}{guess}", "or remove it")
        elif ":" in value and "nolocal" in value.lower():
            self._refuse(f"--{name} {_short(value)} is not allowed: {rules.REFUSED['host'].why}")
        elif name != "rank-by":
            value = re.sub(r"(?i)[:,](no)?oversubscribe", "", value)
            if value:
                self._keep(Option(f"--{name}", value=value))

    def _take_parameter(self, switch: str, words: list[str]) -> None:
        name, value = self._value(switch, words), None
        if name is not None:
            value = self._value(f"{switch} {name}", words)
        if name is None or value is None:
            return
        lowered = name.lower()
        if lowered in rules.DAEMON_LINK:
            self._say(f"{name} is left out: launch daemons use the interface of the job")
            return
        kind = rules.parameter_kind(name)
        if kind == rules.NEVER or not _LETTERS.fullmatch(name):
            why = "it changes who starts what, or where"
            self._refuse(f"--{switch} {_short(name)} is not allowed: {why}", "remove it")
        elif kind == rules.RAW and not self._raw:
            self._refuse_parameter(switch, name, value)
        else:
            self._keep(Option(f"--{switch}", lowered if kind == rules.ALLOWED else name, value))
            if kind == rules.RAW:
                self._say(f"--{switch} {name} is handed on unchecked, as {RAW_OPTIONS} asks")

    def _refuse_parameter(self, switch: str, name: str, value: str) -> None:
        instead = rules.INSTEAD.get(name.lower())
        what = f"--{switch} {name} is not one of the parameters that are known to be harmless"
        fix = f"remove it, or set {RAW_OPTIONS}=1 to hand it to mpirun"
        self._refuse(what, f"write {instead} {_short(value)[1:-1]}" if instead else fix)

    def _take_variable(self, words: list[str]) -> None:
        text = self._value("x", words)
        if text is None:
            return
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            what = f"-x {_short(name)}: that is not the name of a variable"
            self._refuse(what, "write -x NAME=VALUE, one variable for each -x")
            return
        layer, _, parameter = name.partition("_MCA_")
        if equals and parameter and layer in _SWITCHES:  # mpirun makes those variables
            words += [value, parameter]
            self._take_parameter(_SWITCHES[layer], words)
            return
        kind = rules.variable_kind(name)
        if kind == rules.NEVER or (kind == rules.RAW and not self._raw):
            what = f"-x {name} is not allowed: it would change how mpirun itself works"
            again = kind == rules.RAW
            self._refuse(what, f"remove it, or set {RAW_OPTIONS}=1" if again else "remove it")
        elif equals:
            self.variables[name] = value
        else:
            self._unset.append(name)

    def _value(self, name: str, words: list[str]) -> str | None:
        """The next word. A missing one is a problem, and so is an option in its place."""
        if words and not words[-1].startswith("--"):
            return words.pop()
        dashes = "-" if name == "x" else "--"
        self._refuse(f"{dashes}{name} lacks its value", "write the value after it")
        return None

    def _keep(self, given: Option) -> None:
        if given.value is not None and not given.value.isprintable():
            self._refuse(f"{given.switch}: {_short(given.value)} holds a line end", "remove it")
            return
        key = (given.switch if not given.name else "", given.name)
        before = self.given.pop(key, given)
        if before != given:
            shown = f"{given.switch} {given.name}".rstrip()
            self._say(f"{shown} is given more than once: the last counts")
        if given.raw:
            self._say(f"{given.switch} is handed on unchecked, as {RAW_OPTIONS} asks")
        self.given[key] = given

    def _refuse_unknown(self, name: str, word: str) -> None:
        guess = _nearest(name, rules.SPELLINGS)
        fix = f"remove it, or set {RAW_OPTIONS}=1 to hand it to mpirun as it is"
        what = f"unknown option {_short(word)[1:-1]}"
        self._refuse(what + guess, fix)

    def _refuse(self, what: str, fix: str = "") -> None:
        self.problems.append(Problem(self._where, what, fix))

    def _say_output(self, option: str) -> None:
        what = "output of ranks does not pass through mpirun"
        self._say(f"{option} is left out: {what}; MUSTER_LOG_PREFIX=1 marks lines with their rank")

    def _say(self, warning: str) -> None:
        self._said.append(warning)


def _short(text: str) -> str:
    shown = repr(text[: 4 * _SHOWN])
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 4] + "...'"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    """`, did you mean --x?` for a misspelt option, or ""."""
    from difflib import get_close_matches  # only a mistake pays for it

    folded = {one.lower(): one for one in known}
    close = get_close_matches(name[:_SHOWN].lower(), folded, n=1, cutoff=0.7)
    if not close:
        return ""
    return f", did you mean {'--' if known is rules.SPELLINGS else ''}{folded[close[0]]}?"
