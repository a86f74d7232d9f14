"""Where the application is looked for, and what is said when it cannot be had."""

import sys

import pytest

from rebuilder import Rebuilder
from rebuilder.cli.application import Named, find_application, load_application
from rebuilder.errors import DefinitionError, DuplicateDefinition

MODULE = """
from rebuilder import Columns, Projection, Rebuilder, Registry, SqlHandlers, TableLog

class Shop:
    rebuilder = Rebuilder("dbname=shop", log=TableLog("events", columns=Columns(
        position="id", stream="stream", type="type", data="data")), registry=Registry())

rebuilder = Shop.rebuilder
number = 42
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_the_option_wins_over_the_environment_and_that_over_the_project(folder, monkeypatch):
    (folder / "pyproject.toml").write_text('[tool.rebuilder]\napp = "three:x"\n')
    assert find_application(None) == Named("three:x", "pyproject.toml")
    monkeypatch.setenv("REBUILDER_APP", "two:x")
    assert find_application(None) == Named("two:x", "REBUILDER_APP")
    assert find_application("one:x") == Named("one:x", "--app")


@pytest.mark.parametrize("text", ["", "[project]\n", "[tool.other]\napp = 'x'\n", "[tool.rebuilder]\n"])
def test_a_project_that_names_none(folder, text):
    (folder / "pyproject.toml").write_text(text)
    assert find_application(None) is None


@pytest.mark.parametrize("text, message", [
    ("[tool", "pyproject.toml cannot be read"), ("[tool.rebuilder]\napp = 4\n", "app in pyproject.toml is 4"),
])
def test_a_project_that_is_wrong(folder, text, message):
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(DefinitionError, match=message):
        find_application(None)


@pytest.mark.parametrize("name", ["shop:rebuilder", "shop:Shop.rebuilder"])
def test_an_application_in_the_current_folder_is_imported(folder, name):
    (folder / "shop.py").write_text(MODULE)
    assert isinstance(load_application(Named(name, "--app")), Rebuilder)


def test_none_at_all_says_where_it_may_be_named():
    with pytest.raises(DefinitionError) as caught:
        load_application(None)
    for way in ("--app module:attr", "REBUILDER_APP", "[tool.rebuilder]"):
        assert way in caught.value.hint


@pytest.mark.parametrize("text, message", [
    ("shop", "must be module:attr"), (":x", "must be module:attr"), ("shop:", "must be module:attr"),
    ("nowhere.at.all:x", "'nowhere.at.all' .* was not found"), ("shop:number", "is a int, not a Rebuilder"),
    ("shop:number.more", "no attribute 'number.more'"),
])
def test_what_is_no_application(folder, text, message):
    (folder / "shop.py").write_text(MODULE)
    with pytest.raises(DefinitionError, match=message):
        load_application(Named(text, "REBUILDER_APP"))


@pytest.mark.parametrize("source, said", [
    ("import not_there", "ModuleNotFoundError: No module named 'not_there'"), ("1 / 0", "ZeroDivisionError"),
    ("raise SystemExit(3)", "SystemExit: 3"), ("def", "SyntaxError"),
    ("import os\nos.environ['BANK_DSN']", "KeyError: 'BANK_DSN'"),
])
def test_what_python_said_is_repeated_with_its_line(folder, source, said):
    (folder / "broken.py").write_text(source)
    with pytest.raises(DefinitionError) as caught:
        load_application(Named("broken:x", "--app"))
    assert said in caught.value.message
    assert f"broken.py, line {len(source.splitlines())}" in caught.value.message


def test_an_error_of_ours_says_more_than_that_the_import_failed(folder):
    (folder / "twice.py").write_text("from rebuilder.errors import DuplicateDefinition\nraise DuplicateDefinition('!')")
    with pytest.raises(DuplicateDefinition):
        load_application(Named("twice:x", "--app"))
