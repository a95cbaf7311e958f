"""`penstock bench`: measure whether the data keeps up with a model."""

from typing import Annotated

import typer

from penstock.cli import arguments, screen


def bench(
    data: arguments.Data,
    model_tokens_per_second: Annotated[
        float | None,
        typer.Option(min=0, help="Tokens per second that the model takes; exit code 1 if the loader is slower."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long the loader is measured.")] = 5.0,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of each data set that are prepared, without the cache, to measure that.")
    ] = 20_000,
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    option: arguments.Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    num_proc: arguments.NumProc = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Measure the speed of preparation and of the loader.

    In tokens per second, with your own recipe.
    """
    screen.listen(json=True)  # warnings only: epochs end while it is measured
    recipe = arguments.recipe(
        data, option, tokenizer=tokenizer, template=template, cache_dir=cache_dir, num_proc=num_proc,
        max_length=max_length, batch_size=batch_size, per_epoch=False,
    ).changed(epochs=None)  # fmt: skip
    loader = arguments.loader(recipe, part=part, json=json)
    from penstock import api
    from penstock.report import numbers, speed, text

    made = speed.preparation(lambda: api.prepare_anew(recipe, part=part, rows=rows), model=model_tokens_per_second)
    found = [made, speed.loading(loader, seconds=seconds, model=model_tokens_per_second)]
    if json:
        extra = [{"tokens_per_second": each.tokens_per_second, "headroom": each.headroom} for each in found]
        screen.as_json([{**numbers.plain(each), **more} for each, more in zip(found, extra, strict=True)])
    else:
        screen.show(text.speeds(found))
    if found[1].headroom is not None and found[1].headroom < 1:
        raise typer.Exit(1)
