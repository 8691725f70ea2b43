"""Every `atlas ...` that README and docs show has a verb, options and settings that there are.

Nothing is run here. What stands in a block of code is parsed as typed; what stands within a
sentence may leave out what does not matter there, so only its words are looked up.
"""

import re
import shlex
from pathlib import Path

import click
import pytest

from atlas.cli import command_line
from atlas.config.describe import find_settings
from atlas.config.load import KINDS, load_config, preset_names
from atlas.errors import InputError
from atlas.federation.strategies import STRATEGIES
from atlas.jobs.study.cases import plan_study

ROOT = Path(__file__).parents[1]
# The log tells what was typed at its time, and is left as it was.
DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "LOG.md"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", flags=re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^(?:cat \S+ \| |torchrun [^|]*-m )?(atlas [a-z].*)$")
SETTING = re.compile(r"^([a-z_]+(?:\.[\w-]+)*)=(.*)$", flags=re.DOTALL)
GROUP = command_line()
EVERYWHERE = {"--help", "--install-completion"}


def blocks(text):
    """Command lines of indented blocks and of fences for the shell, continued lines joined."""
    plain = FENCE.sub("", text)
    lines = [line.strip() for line in re.findall(r"^ {4,}\S.*$", plain.replace("\\\n", " "), re.M)]
    for _, language, body in FENCE.findall(text):
        if language in ("", "bash", "sh"):
            lines += [line.strip() for line in body.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in line.split(" && ")]
    return [match.group(1) for match in map(SHELL.match, parts) if match]


def spans(text):
    """What sentences and tables quote as a command."""
    quoted = re.findall(r"(?<!`)`(atlas [^`]+)`(?!`)", FENCE.sub("", text))
    return [" ".join(span.split()) for span in quoted]


def words(line):
    """The words a shell would pass on; dots stand for what a page leaves out."""
    return [w for w in shlex.split(line.replace(",...,", ","), comments=True)[1:] if w != "..."]


def find_command(given):
    """The verb, or the verb of a group of verbs, and what follows it."""
    command, rest = GROUP, list(given)
    while hasattr(command, "commands") and rest:
        name = rest.pop(0)
        assert name in command.commands, f"no verb {name!r}"
        command = command.commands[name]
    return command, rest


def check_key(text):
    match = SETTING.match(text)
    assert match, f"{text!r} is no key=value"
    if match.group(1) != "size":
        find_settings(match.group(1), list(KINDS))


def check_settings(source, settings, arms=None):
    """All of it together where the source can be read from here, key by key where it cannot."""
    for text in settings + [word for arm in arms or () for word in _settings_of(arm)]:
        check_key(text)
    if source in preset_names() or (source.endswith(".yaml") and (ROOT / source).exists()):
        if arms is None:
            config = load_config(source, settings)
            named = getattr(config, "strategy", "atlas")
            assert named in STRATEGIES or config.plugins, f"no strategy {named!r}"
        elif not any(text.startswith("plugins=") for text in settings):
            plan_study(source, settings, arms)


def _settings_of(arm):
    return shlex.split(arm.split(": ", 1)[-1])


def check_block(line):
    command, rest = find_command(words(line))
    with command.make_context(command.name, rest) as context:
        given = context.params
    settings = list(given.get("overrides") or ())
    if command.name == "settings":
        assert given["key"] is None or find_settings(given["key"], list(KINDS))
    elif command.name == "compare":
        check_settings(given["source"], settings, list(given["arm"] or ()))
    elif settings:
        check_settings(str(given.get("source") or ""), settings)


def check_span(span):
    try:
        given = words(re.sub(r"[\[\]](?![^=]*=)", " ", span))
    except ValueError:  # a quotation that goes on after the span
        return
    if not given:
        return
    if given[0].startswith("-") or given[0] == "VERB":
        command, rest = GROUP, [word for word in given if word != "VERB"]
    else:
        command, rest = find_command(given)
    options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    for word in rest:
        if word.startswith("--"):
            assert word.split("=")[0].rstrip(",") in options | {"--help", "--install-completion"}, (
                word
            )
        elif SETTING.match(word) and word not in ("key=value", "key=a,b"):
            check_key(word)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_is_one_that_there_is(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text, wrong = page.read_text(encoding="utf-8"), []
    for check, found in ((check_block, blocks(text)), (check_span, spans(text))):
        for line in found:
            try:
                check(line)
            except (AssertionError, click.ClickException, InputError, ValueError) as error:
                wrong.append(f"{line}\n    {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)


def test_enough_is_found():
    assert len(blocks((ROOT / "README.md").read_text(encoding="utf-8"))) > 20
    assert sum(len(spans(page.read_text(encoding="utf-8"))) for page in PAGES) > 60


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (check_block, "atlas rnu demo"),
        (check_block, "atlas run demo --colour"),
        (check_block, "atlas run demo round=3"),
        (check_block, "atlas run demo rounds=many"),
        (check_block, "atlas run demo strategy=fedaverage"),
        (check_block, "atlas export demo --client a"),
        (check_block, 'atlas compare demo --arm "relation.etta=0"'),
        (check_block, "atlas settings train.rate"),
        (check_span, "atlas exports demo"),
        (check_span, "atlas export --merge"),
        (check_span, "atlas resume RUN round=20"),
    ],
)
def test_a_slip_is_found(check, line):
    with pytest.raises((AssertionError, click.ClickException, InputError, ValueError)):
        check(line)
