"""The custom MPI options of a request, split as a shell would and checked against a deny-list.

Pure, and used twice: while the request is read, so that every problem is reported before anything
starts, and by the plan, which turns what was read into words for the mpirun at hand.
"""

from __future__ import annotations

import re
import shlex

from muster.types import mpi_rules as rules
from muster.types.distribution import Distribution, Mpi
from muster.types.errors import Problem
from muster.types.plain import short
from muster.types.values import NamedTuple

MAX_TEXT = 32 << 10  # characters; CreateTrainingJob allows a hyperparameter 2,500
ENOUGH = 20  # problems that are reported
_SWITCHES = {"OMPI": "mca", "PRTE": "prtemca", "PMIX": "pmixmca"}


class Option(NamedTuple):
    """One option for mpirun: its name without dashes, and its values: of `--mca` two, else one at
    most."""

    name: str
    values: tuple[str, ...] = ()


class MpiRequest(NamedTuple):
    """What a text asks for. `variables`: `-x NAME=VALUE`, each name once.

    `warnings`: lines for the log. `problems`: why the text cannot be used.
    """

    options: tuple[Option, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_request(text: str, where: str, *, several: bool = True) -> MpiRequest:
    """All that `text` asks for, and all that is wrong with it.

    `where`: the hyperparameter, for problems. `several`: the job has more than one host, so that
    ranks can be spread over them in more ways than one.
    """
    reader = _Reader(where, several)
    reader.read(text)
    return MpiRequest(
        tuple(reader.options.values()),
        tuple(reader.variables.items()),
        tuple(reader.warnings),
        tuple(reader.problems),
    )


def asked_variables(distribution: Distribution) -> dict[str, str]:
    """What `-x NAME=VALUE` asks for, as far as it can be read: some of it may be secret."""
    if not isinstance(distribution, Mpi) or not distribution.custom_options:
        return {}
    return dict(read_request(distribution.custom_options, "").variables)


class _Reader:
    """Takes the words of a text one option at a time. `_words`: in reverse order."""

    def __init__(self, where: str, several: bool) -> None:
        self.options: dict[str, Option] = {}
        self.variables: dict[str, str] = {}
        self.warnings: dict[str, None] = {}  # in their order, each once
        self.problems: list[Problem] = []
        self._where = where
        self._several = several
        self._words: list[str] = []

    def read(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            self._refuse(f"{len(text)} characters, at most {MAX_TEXT:,} are allowed", "shorten it")
            return
        try:
            text.encode()  # lone surrogates are part of no argument
            if re.search(r"[^\S\t\n\r ]|[\0-\x08\x0e-\x1f]", text, re.A):
                raise ValueError("it holds a control character")
            self._words = shlex.split(text)[::-1]
        except ValueError as error:
            what = f"cannot be split as a shell would: {error}"
            self._refuse(what, "close the quote, or put a backslash before it")
        while self._words and len(self.problems) < ENOUGH:
            self._take_option()

    def _take_option(self) -> None:
        word = self._words.pop()
        switch, equals, value = word.partition("=")
        name = switch.lstrip("-")
        if not word.startswith("-") or not name:
            what = f"{short(word)} is no option: mpirun would take it for the program to start"
            self._refuse(what, "quote values that hold spaces, or remove it")
            return
        if len(name) > 1 and name != "NCCL_DEBUG":  # as mpirun 5 reads it
            name = name.lower().replace("_", "-")
        name = rules.ALIASES.get(name, name)
        if equals:
            self._words.append(value)
        if name in rules.REFUSED:
            self._values(len(self._words))
            self._refuse(f"{short(switch)[1:-1]} is not allowed: {rules.REFUSED[name]}")
        elif name in rules.LEFT_OUT:
            self._values(name in rules.WITH_VALUE)
            self._say(f"--{name} is left out: {rules.LEFT_OUT[name]}")
        elif name in ("x", "NCCL_DEBUG", *rules.MCA, *rules.PLACING, *rules.VALUED):
            self._take_known(name)
        elif whole := rules.whole_name(name):
            self._values(len(self._words))
            what = f"{short(switch)[1:-1]} is not allowed: mpirun may take it for --{whole}"
            self._refuse(what, "write options in full")
        else:
            self._take_alone(name, switch, bool(equals))

    def _take_alone(self, name: str, switch: str, equals: bool) -> None:
        """An option without a value, or one of which nothing is known."""
        values: tuple[str, ...] = (self._words.pop(),) if equals else ()
        if name not in rules.FLAGS:
            values += self._values(len(self._words))
        if values:
            why = "it takes no value" if name in rules.FLAGS else "muster does not know its values"
            what = f"{short(switch)[1:-1]} {short(values[0])} is not allowed: {why}"
            self._refuse(what, "remove the value")
        elif name in rules.SHOWN:
            self._display([rules.SHOWN[name]])
        else:
            self._keep(name, ())

    def _take_known(self, name: str) -> None:
        count = 2 if name in rules.MCA else 1
        values = self._values(count, "--") if name in rules.MCA else self._values(count)
        if len(values) < count:
            said = " ".join([f"{'-' if name == 'x' else '--'}{name}", *values])
            self._refuse(f"{said} lacks its value", "write the value after it")
        elif name == "x":
            self._take_variable(*values[0].partition("="))
        elif name == "NCCL_DEBUG":
            self.variables[name] = values[0]
        elif name in rules.MCA:
            self._take_parameter(name, *values)
        elif name in rules.PLACING:
            self._place(name, values[0])
        elif name == "display":
            self._display(re.sub(r"\bbind\b", "bindings", values[0].lower()).split(","))
        else:
            self._keep(name, values)

    def _display(self, parts: list[str]) -> None:
        """One option for all of them, since mpirun 5 takes it only once."""
        before = self.options.pop("display", None)
        given = [*(before.values[0].split(",") if before else ()), *parts]
        self._keep("display", (",".join(dict.fromkeys(given)),))

    def _place(self, name: str, value: str) -> None:
        if name == "bind-to":
            self._keep(name, (value,))
            return
        by_node = value.lower() == "node" and not self._several  # by slot, then
        turns = name == "rank-by" and value.lower() != "slot"
        if not by_node and (turns or rules.placement_refused(value)):
            why = "ranks are numbered host after host"
            self._refuse(f"--{name} {short(value)} is not allowed: {why}")
        elif name == "map-by" and not by_node:
            value = re.sub(r"(?i)[:,](no)?oversubscribe", "", value)
            if value:
                self._keep(name, (value,))

    def _take_parameter(self, switch: str, name: str, value: str) -> None:
        name = name.lower()
        bare = rules.short_name(name)
        if bare in rules.LEFT_OUT_PARAMETERS:
            self._say(f"{name} is left out: {rules.LEFT_OUT_PARAMETERS[bare]}")
        elif bare in rules.OPTION_OF:
            self._place(rules.OPTION_OF[bare], value)
        elif rules.parameter_refused(name):
            why = "it changes who starts what, or where"
            self._refuse(f"--{switch} {short(name)} is not allowed: {why}")
        else:
            self._keep(switch, (name, value))

    def _take_variable(self, name: str, equals: str, value: str) -> None:
        layer, _, parameter = name.partition("_MCA_")
        switch = _SWITCHES.get(layer, "") if parameter else ""
        harmless = switch and not rules.parameter_refused(parameter.lower())
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.A):
            what = f"-x {short(name)}: that is no name of a variable"
            self._refuse(what, "write -x NAME=VALUE, one variable for each -x")
        elif equals and switch:  # mpirun makes those variables
            self._take_parameter(switch, parameter, value)
        elif name.startswith(rules.FORBIDDEN_VARIABLES) and not harmless:
            self._refuse(f"-x {name} is not allowed: it would change how mpirun itself works")
        elif equals:
            self.variables[name] = value
        else:
            self._say(f"-x {name} carries no value: scripts have their own host's environment")

    def _values(self, most: int, option: str = r"-\D|-$") -> tuple[str, ...]:
        """The next words that are no options (do not begin as one), a number of them at most."""
        values: list[str] = []
        while len(values) < most and self._words and not re.match(option, self._words[-1]):
            values.append(self._words.pop())
        return tuple(values)

    def _keep(self, name: str, values: tuple[str, ...]) -> None:
        if not all(value.isprintable() for value in values):
            self._refuse(f"--{name}: {short(' '.join(values))} holds a line end")
            return
        key = " ".join([name, *values[:-1]])
        if self.options.pop(key, Option(name, values)).values != values:
            self._say(f"--{key} is given more than once: the last counts")
        self.options[key] = Option(name, values)

    def _refuse(self, what: str, fix: str = "remove it") -> None:
        self.problems.append(Problem(self._where, what, fix))

    def _say(self, warning: str) -> None:
        self.warnings[warning] = None
