"""`penstock report`: write one HTML page about a run before it begins."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import arguments, screen

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Any key of a recipe, or option of the source, such as eos=false or record=file; again for more.",
    ),
]  # without -o, which is the page here


def report(
    data: arguments.Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path("report.html"),
    tokenizer: arguments.Tokenizer = None,
    template: arguments.Template = None,
    option: Options = None,
    part: arguments.Part = "train",
    max_length: arguments.MaxLength = None,
    batch_size: arguments.BatchSize = None,
    world_size: arguments.WorldSize = 1,
    samples: Annotated[int, typer.Option(min=0, max=500, help="Samples to show, chosen at random.")] = 24,
    rows: Annotated[int, typer.Option(min=1, max=500, help="Rows to draw, spread over the epoch.")] = 24,
    compare: Annotated[
        bool, typer.Option(help="Also compare other lengths and packings, each of which packs all data again.")
    ] = True,
    title: Annotated[str | None, typer.Option(help="The page's title; else the recipe's name.")] = None,
    cache_dir: arguments.CacheDir = None,
    json: arguments.Json = False,
) -> None:
    """Write one page with plots and samples.

    Lengths, trained tokens, data sets, what is dropped, packing, rows as segments, samples with their tokens in colour.  The page
    is one file that loads nothing.  It contains text of your data.
    """
    from penstock.report import html
    from penstock.report.progress import stages

    screen.listen(json=json)
    html.checked(output)
    recipe = arguments.recipe(
        data,
        option,
        tokenizer=tokenizer,
        template=template,
        cache_dir=cache_dir,
        max_length=max_length,
        batch_size=batch_size,
    )
    loader = arguments.loader(recipe, part=part, world_size=world_size, json=json)
    folder = Path(recipe.file).parent if recipe.file else Path()
    name = title or (Path(recipe.file).stem if recipe.file else "")
    with stages("none" if json else "auto") as stage:
        num_bytes = html.write(
            loader,
            output,
            title="" if name == "recipe" and not title else name,
            recipe=recipe.to_yaml(folder),
            num_samples=samples,
            num_rows=rows,
            compare=compare,
            stage=stage,
        )
    if json:
        screen.as_json({"page": str(output), "num_bytes": num_bytes, "plan": loader.plan.fingerprint})
    else:
        screen.say(f"{output}: {screen.num_bytes(num_bytes)}, open it in a browser")
