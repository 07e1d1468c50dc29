"""`completion`: what a shell offers when Tab is pressed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Final

from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand

__all__ = ["completion"]

_BASH: Final = """\
_limits_app() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word index words
    [ "${{COMP_WORDS[1]}}" = limits ] || return
    for (( index = 2; index < COMP_CWORD; index++ )); do
        word="${{COMP_WORDS[index]}}"
        case " $(_limits_app_words "$path") " in
            *" $word "*) case "$word" in -*) ;; *) path="$path $word" ;; esac ;;
        esac
    done
    words="$(_limits_app_words "$path")"
    case "$current" in -*) ;; *) words="$(printf '%s\n' $words | grep -v '^-')" ;; esac
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
_limits_app_words() {{
    case "$1" in
{cases}
    esac
}}
complete -o default -F _limits_app manage.py ./manage.py django-admin
"""
_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_FISH: Final = "for name in manage.py django-admin\n{lines}\nend\n"

Words = Mapping[str, list[str]]


def completion(subcommands: Mapping[str, Subcommand]) -> Subcommand:
    """The subcommand that writes what completes all of them, itself included."""

    def run(options: Namespace, out: Output) -> ExitCode:
        words = dict(_words({**subcommands, "completion": itself}, ""))
        out.write(_SHELLS[options.shell](words))
        return ExitCode.OK

    itself = Subcommand(
        "write what completes these commands in a shell",
        run,
        _takes_shell,
        ("completion bash > /etc/bash_completion.d/limits",),
    )
    return itself


def _words(subcommands: Mapping[str, Subcommand], path: str) -> Iterator[tuple[str, list[str]]]:
    """What can follow after each sequence of words."""
    yield path, [*subcommands]
    for name, subcommand in subcommands.items():
        below = f"{path} {name}"
        if subcommand.verbs:
            yield from _words(subcommand.verbs, below)
        else:
            yield below, _options(subcommand)


def _options(subcommand: Subcommand) -> list[str]:
    parser = ArgumentParser(add_help=False)
    subcommand.add_to(parser)
    options = [option for action in parser._actions for option in action.option_strings]
    choices = [str(one) for action in parser._actions if not action.option_strings for one in action.choices or ()]
    return [*options, *choices]


def _bash(words: Words) -> str:
    cases = "\n".join(f'        "{path}") echo "{" ".join(there)}" ;;' for path, there in words.items())
    return _BASH.format(cases=cases)


def _zsh(words: Words) -> str:
    return _ZSH + _bash(words)


def _fish(words: Words) -> str:
    lines = []
    for path, there in words.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in ["limits", *path.split()])
        unseen = f"; and not __fish_seen_subcommand_from {' '.join(there)}" if there and there[0][0] != "-" else ""
        lines.append(f"    complete -c $name -f -n '{seen}{unseen}' -a '{' '.join(there)}'")
    return _FISH.format(lines="\n".join(lines))


_SHELLS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _takes_shell(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=[*_SHELLS])
