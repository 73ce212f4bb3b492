"""Mutation tests: which small faults, put into the code on purpose, the unit and contract tests find, and which they let pass.

    python -m tests.mutation                      all mutants of the packages in tests/mutation/scope.py
    python -m tests.mutation --sample 300         all mutants of the modules in WHOLE, and at most 300 others a package
    python -m tests.mutation --only 'schemas.draws.*'
    python -m tests.mutation --resume             continue a run that was stopped
    python -m tests.mutation --report             show again what is known

The score is killed / (killed + survived). Survivors stand in build/mutation/report.md, those that change only the wording of a
message counted, the others shown. mutmut mutates functions and methods, not decorated ones (properties, validators), and nothing
that is run when a module is imported: constants and the fields of a class have no mutants.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tests.mutation import scope, workplace
from tests.mutation.results import Changes, Mutant, State, mutants


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sample", type=int, metavar="N", help="mutants a package, besides those of WHOLE")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="names of mutants, as mutmut gives them")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    try:
        if not (args.resume or args.report):
            workplace.prepare()
        by_package = {name: workplace.sources(patterns) for name, patterns in scope.PACKAGES.items()}
        whole = workplace.sources(scope.WHOLE)
        if not args.report:
            run(by_package, whole, args.only, args.sample, args.seed)
    except workplace.MutationFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    found = {name: mutants(modules) for name, modules in by_package.items()}
    report = workplace.FOLDER / "report.md"
    scores = "\n".join(table(found))
    report.write_text(f"{scores}\n\n" + "\n".join(survivors(found)) + "\n")
    print(f"{scores}\n\nsurvivors: {report}")
    return 0


def run(by_package: dict[str, list[Path]], whole: list[Path], only: list[str], sample: int | None, seed: int) -> None:
    if sample is None:
        workplace.mutmut(only)
        return
    if not mutants(whole):  # the mutants of all packages are made by the first run; only then are their names known
        workplace.mutmut([f"{'.'.join(module.with_suffix('').parts)}.*" for module in whole])
    draw = random.Random(seed)
    chosen = mutants(whole)
    for modules in by_package.values():
        rest = mutants([module for module in modules if module not in whole])
        chosen += draw.sample(rest, min(sample, len(rest)))
    names = [mutant.name for mutant in chosen if mutant.state is State.NOT_RUN]
    if names:
        workplace.mutmut(names)


def table(found: dict[str, list[Mutant]]) -> Iterator[str]:
    yield "| | score | " + " | ".join(State) + " |"
    yield "|---|" + "---:|" * (1 + len(State))
    for package, of_package in found.items():
        yield row(f"**{package}**", of_package)
        for module, of_module in groupby(of_package, key=lambda mutant: mutant.module):
            yield row(str(module), list(of_module))


def row(name: str, of: Sequence[Mutant]) -> str:
    counts = Counter(mutant.state for mutant in of)
    judged = counts[State.KILLED] + counts[State.SURVIVED]
    score = f"{counts[State.KILLED] / judged:.1%}" if judged else "-"
    return f"| {name} | {score} | " + " | ".join(str(counts[state]) for state in State) + " |"


def survivors(found: dict[str, list[Mutant]]) -> Iterator[str]:
    for of_package in found.values():
        for module, of_module in groupby(of_package, key=lambda mutant: mutant.module):
            alive = [mutant for mutant in of_module if mutant.state is State.SURVIVED]
            if not alive:
                continue
            changes = Changes(module)
            changed = sorted(((changes.of(mutant), mutant.name) for mutant in alive), key=lambda entry: (entry[0].line, entry[1]))
            yield f"## {module}: {len(alive)} survived, {sum(change.prose for change, _ in changed)} of them in wording alone\n"
            for change, name in changed:
                if not change.prose:
                    yield f"* line {change.line}, `{name.rpartition('.')[2]}`"
                    yield "  ```diff"
                    yield from (f"  - {line}" for line in change.removed)
                    yield from (f"  + {line}" for line in change.added)
                    yield "  ```"
            yield ""


if __name__ == "__main__":
    sys.exit(main())
