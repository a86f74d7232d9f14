"""Named queries and statement builders, as text: no server is asked."""

from pathlib import Path

import pytest
from psycopg import sql

import rebuilder.sql
from rebuilder.sql import ddl, load

TABLE = sql.Identifier("my schema", 'we"ird')


def text(statement: sql.Composable) -> str:
    return statement.as_string(None)


def test_every_query_of_the_package_has_a_name_and_a_body() -> None:
    for file in Path(rebuilder.sql.__file__).parent.glob("*.sql"):
        assert load(file.stem)
        assert all(load(file.stem).values())


def test_a_name_given_twice_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice.sql").write_text("-- a: one\nSELECT 1\n-- a: two\nSELECT 2\n")
    monkeypatch.setattr(rebuilder.sql, "files", lambda _package: tmp_path)
    with pytest.raises(ValueError, match="'a'"):
        load.__wrapped__("twice")


def test_queries_are_split_at_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.sql").write_text(
        "-- A file.\n\n-- first: the first\nSELECT 1 -- one\n-- more\n\n-- second: x\nSELECT 2\n"
    )
    monkeypatch.setattr(rebuilder.sql, "files", lambda _package: tmp_path)
    assert dict(load.__wrapped__("some")) == {"first": "SELECT 1 -- one\n-- more", "second": "SELECT 2"}


def test_a_definition_is_retargeted_by_its_exact_beginning_only() -> None:
    definition = "CREATE INDEX i ON public.live USING btree (t) WHERE (t <> 'CREATE INDEX i ON public.live '::text)"
    head = sql.SQL("CREATE INDEX {} ON {} ").format(sql.Identifier("i"), TABLE)
    assert text(ddl.retarget(definition, "CREATE INDEX i ON public.live ", head)) == (
        'CREATE INDEX "i" ON "my schema"."we""ird" USING btree (t)'
        " WHERE (t <> 'CREATE INDEX i ON public.live '::text)"
    )


def test_a_definition_with_another_beginning_is_a_bug_that_is_told_of() -> None:
    with pytest.raises(ValueError, match="does not begin with"):
        ddl.retarget(
            "CREATE INDEX i ON public.live_too USING btree (t)", "CREATE INDEX i ON public.live ", sql.SQL("x")
        )


@pytest.mark.parametrize(
    "column, expected",
    [
        (ddl.column("a", "integer"), '"a" integer'),
        (
            ddl.column("a", "text", collation='pg_catalog."C"', not_null=True),
            '"a" text COLLATE pg_catalog."C" NOT NULL',
        ),
        (
            ddl.column("a", "text", compression="l", default=ddl.raw("'{x}'")),
            "\"a\" text COMPRESSION lz4 DEFAULT '{x}'",
        ),
        (
            ddl.column("a", "int", default=ddl.raw("(b + 1)"), generated="s"),
            '"a" int GENERATED ALWAYS AS ((b + 1)) STORED',
        ),
        (
            ddl.column("a", "int", default=ddl.raw("(b + 1)"), generated="v"),
            '"a" int GENERATED ALWAYS AS ((b + 1)) VIRTUAL',
        ),
    ],
)
def test_columns(column: sql.Composable, expected: str) -> None:
    assert text(column) == expected


def test_options_are_names_and_literals() -> None:
    parts = [*ddl.options(["fillfactor=70"]), *ddl.options(["autovacuum_enabled=false"], "toast.")]
    assert text(ddl.with_options(parts)) == " WITH (\"fillfactor\" = '70', toast.\"autovacuum_enabled\" = 'false')"
    assert text(ddl.with_options([])) == ""


def test_constraints_and_comments() -> None:
    using = ddl.add_constraint_using_index(TABLE, "k", primary=True, deferrable=True, deferred=True)
    assert text(using) == (
        'ALTER TABLE "my schema"."we""ird" ADD CONSTRAINT "k" PRIMARY KEY USING INDEX "k" DEFERRABLE INITIALLY DEFERRED'
    )
    assert text(ddl.add_constraint(TABLE, "c", "CHECK ((a > 0))")) == (
        'ALTER TABLE "my schema"."we""ird" ADD CONSTRAINT "c" CHECK ((a > 0))'
    )
    assert ddl.comment("TABLE", TABLE, None) == []
    assert [text(s) for s in ddl.comment("RULE", ddl.on_table("r", TABLE), "it's")] == [
        'COMMENT ON RULE "r" ON "my schema"."we""ird" IS \'it\'\'s\''
    ]
