"""`penstock check`: check a recipe and its data for problems before the run."""

from typing import Annotated

import typer

from penstock.cli import arguments, screen


def check(
    data: arguments.Data,
    rows: Annotated[
        int, typer.Option(min=0, help="Rows to check, spread over each data set; 0 checks all of them.")
    ] = 2000,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    train_on: arguments.TrainOn = None,
    chat_template: arguments.ChatTemplate = None,
    option: arguments.Options = None,
    max_length: arguments.MaxLength = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Check a recipe and its data for problems.

    Bad rows, template, chat template, trained tokens, BOS and EOS, rows without loss, rows that are too long, duplicates, disk:
    each is ok, a warning or a failure.  Nothing is prepared.  Exit code 1 if anything fails.
    """
    words = arguments.template_text(chat_template)
    screen.listen(json=json)
    recipe = arguments.recipe(
        data, option, tokenizer=tokenizer, template=template, train_on=train_on, chat_template=words,
        cache_dir=cache_dir, max_length=max_length,
    )  # fmt: skip
    from penstock import api
    from penstock.report import numbers, text

    found = []
    for part in recipe.parts:
        for checked in api.check_recipe(recipe, part=part, rows=rows):
            found.append((part, checked))
            if not json:
                screen.show(text.checked(checked))
    if json:
        screen.as_json([{"part": part, **numbers.plain(checked)} for part, checked in found])
    answers = [verdict.answer for _, checked in found for verdict in checked.verdicts]
    if not json:
        screen.say(f"{text.count(answers.count('fail'), 'failure')}, {text.count(answers.count('warn'), 'warning')}")
    if "fail" in answers:
        raise typer.Exit(1)
