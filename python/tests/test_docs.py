"""The Python programs of the documents run, those of the guide page by page, and the cells of the notebook."""

import gc
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = sorted((ROOT / "docs/guide").glob("*.md"))
POSTS = sorted((ROOT / "docs/questions").glob("0*.md"))


def programs(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


@pytest.mark.parametrize("document", ["README.md", "docs/keras.md", "docs/python.md"])
def test_programs_of_the_documents_run(document, capsys):
    found = programs(ROOT / document)
    assert found
    for program in found:
        exec(compile(program, document, "exec"), {})
    printed = capsys.readouterr().out
    assert f"{document}:" in printed and "in use" in printed


@pytest.mark.parametrize("path", [*GUIDE, *POSTS], ids=lambda path: path.stem)
def test_programs_of_the_guide_and_of_the_posts_run(path):
    found = programs(path)
    assert found or path.name == "README.md"
    names = {"__name__": path.stem}
    for program in found:
        exec(compile(program, path.name, "exec"), names)
    names.clear()
    gc.collect()


def test_every_page_has_both_languages():
    for path in [*GUIDE, *POSTS]:
        if path in POSTS:
            assert programs(path), path.name
        elif path.name != "README.md" and not path.name.startswith("coming-from"):
            assert "```rust" in path.read_text() and programs(path), path.name


def test_the_cells_of_the_notebook_run():
    """Cell by cell in one set of names, and what a cell ends with renders itself."""
    notebook = json.loads((ROOT / "docs/guide/first-steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    names, n_rendered = {}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        *before, last = re.split(r"\n(?=\S)", "".join(cell["source"]))
        try:
            expression = compile(last, "notebook", "eval")
        except SyntaxError:
            exec(compile("\n".join([*before, last]), "notebook", "exec"), names)
            continue
        exec(compile("\n".join(before), "notebook", "exec"), names)
        result = eval(expression, names)
        if result is not None:
            assert result._repr_html_().startswith("<pre>")
            n_rendered += 1
    assert n_rendered == 4, n_rendered
    names.clear()
    gc.collect()
