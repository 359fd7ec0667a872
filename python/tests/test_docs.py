"""The Python programs of the documents run."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("document", ["README.md", "docs/keras.md", "docs/python.md"])
def test_programs_of_the_documents_run(document, capsys):
    programs = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.S)
    assert programs
    for program in programs:
        exec(compile(program, document, "exec"), {})
    printed = capsys.readouterr().out
    assert f"{document}:" in printed and "in use" in printed
