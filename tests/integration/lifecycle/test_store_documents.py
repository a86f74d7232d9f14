"""Documents, their inventory, and snapshots (lifecycle scenarios 75 to 92)."""

import uuid
from datetime import timedelta

import psycopg
import pytest

from rebuilder.domain.documents import VALUE_BYTES, Document, InventoryQuery, Snapshot
from rebuilder.domain.lifecycle import Cancel, Progressed, Start
from rebuilder.errors import RecordConflict, RecordCorrupt, RecordNotFound
from rebuilder.store.documents import Building, Live
from tests.integration.lifecycle.steps import NAME, adopt, asked, complete, cp, started, step

LIVE = Live(NAME, 1)


@pytest.fixture
def live(store):
    """A projection whose live generation is 1."""
    adopt(store)
    return store


def put(store, *documents, into=LIVE):
    store.put_documents([Document(key, value) for key, value in documents], into)


def keys(page):
    return [(row.generation, row.key) for row in page.rows]


def every_page(store, limit=256, **arguments):
    """All rows, page by page."""
    query = InventoryQuery(NAME, limit=limit, **arguments)
    while True:
        page = store.inventory(query)
        yield page
        if page.next is None:
            return
        query = InventoryQuery(NAME, query.generation, limit, page.next)


def test_the_latest_value_is_read(live):
    """76: put, get, replace, get; JSON comes back as it went in, bytes as bytes."""
    put(live, ("a", {"n": 1, "big": 2**80, "text": "é\n"}), ("b", b"\x00\xff"))
    assert live.document(NAME, "a").value == {"n": 1, "big": 2**80, "text": "é\n"}
    put(live, ("a", [1, 2]))
    assert (live.document(NAME, "a").value, live.document(NAME, "b").value) == ([1, 2], b"\x00\xff")
    live.put_documents([], LIVE, removed=["a", "nobody"])
    assert live.document(NAME, "a") is None


def test_generations_are_apart_and_live_is_swapped_at_once(live, db):
    """77: the shadow's documents are not seen until its ticket is complete, and then all are."""
    put(live, ("a", b"old"), ("gone", b"old"))
    ticket = started(live)
    put(live, ("a", b"new"), into=Building(ticket.id, ticket.revision))
    assert live.document(NAME, "a").value == b"old"
    complete(live, ticket)
    assert live.document(NAME, "a").value == b"new"
    assert live.document(NAME, "gone") is None
    assert live.document(NAME, "gone", generation=1).value == b"old"


def test_a_worker_that_was_overtaken_writes_nothing(live):
    """The revision is the token: after another's step and after the swap a stale worker's documents are refused."""
    ticket = started(live)
    stale = Building(ticket.id, ticket.revision)
    put(live, ("a", b"1"), into=stale)
    moved = step(live, ticket, Progressed(cp(live, 20, generation=2)))
    with pytest.raises(RecordConflict):
        put(live, ("a", b"2"), into=stale)
    complete(live, moved)
    for into in (Building(ticket.id, moved.revision), LIVE):
        with pytest.raises(RecordConflict):
            put(live, ("a", b"3"), into=into)
    with pytest.raises(RecordNotFound):
        put(live, ("a", b"3"), into=Building(uuid.uuid4(), 1))
    assert live.document(NAME, "a").value == b"1"


def test_documents_and_their_checkpoint_are_one_transaction(live):
    """Either both or none: an error after the documents takes them back."""
    with pytest.raises(ZeroDivisionError), live.transaction():
        put(live, ("a", b"1"))
        live.checkpoint(cp(live, 20))
        1 / 0  # noqa: B018
    assert live.document(NAME, "a") is None
    assert live.status(NAME).checkpoint.source.position == 10
    with live.transaction():
        put(live, ("a", b"1"))
        live.checkpoint(cp(live, 20))
    assert (live.document(NAME, "a").value, live.status(NAME).checkpoint.source.position) == (b"1", 20)


@pytest.mark.parametrize("damage", [
    "UPDATE rebuilder.document SET bytes = 'x'", "UPDATE rebuilder.document SET key = 'b'",
    "UPDATE rebuilder.document SET generation = 2", "UPDATE rebuilder.document SET bytes = ''",
    "UPDATE rebuilder.document SET digest = sha256('x')", "UPDATE rebuilder.document SET digest = 'x'",
    "UPDATE rebuilder.document SET body = '{}'", "UPDATE rebuilder.document SET key = repeat('é', 257)"])
def test_the_database_refuses_what_does_not_fit_its_digest(live, db, damage):
    """Whoever writes SQL: value, key and generation are bound together, and lengths are in bytes."""
    put(live, ("a", b"1"))
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(damage)


def without_checks(db):
    for name in ("digest", "size", "key", "kind", "generation"):
        db.execute(f"ALTER TABLE rebuilder.document DROP CONSTRAINT document_{name}")


@pytest.mark.parametrize("damage", ["SET bytes = 'x'", "SET bytes = ''", "SET digest = '\\x00'"])
def test_a_value_that_was_changed_behind_the_stores_back_is_corrupt(live, db, damage):
    """78, 79: bytes that rot below the constraints are found when they are read."""
    put(live, ("a", b"1"))
    without_checks(db)
    db.execute(f"UPDATE rebuilder.document {damage}")
    with pytest.raises(RecordCorrupt):
        live.document(NAME, "a")


def test_swapped_rows_do_not_verify(live, db):
    """Upstream's digests cover values alone: two rows that change places pass there."""
    put(live, ("a", b"1"), ("b", b"2"))
    without_checks(db)
    db.execute("UPDATE rebuilder.document SET key = CASE key WHEN 'a' THEN 'b2' ELSE 'a2' END")
    for key in ("a2", "b2"):
        with pytest.raises(RecordCorrupt):
            live.document(NAME, key)


def test_every_document_is_listed_once_in_the_order_of_bytes(live, rebuilder):
    """84: 1000 documents in reverse order over two generations, pages of 37, replaced meanwhile, and by a new store."""
    ticket = started(live)
    building = Building(ticket.id, ticket.revision)
    names = [f"k{n:04}" for n in range(500)]
    put(live, *((name, b"1") for name in reversed(names)))
    put(live, *((name, b"2") for name in reversed(names)), into=building)
    found = []
    for page in every_page(live, 37):
        found += keys(page)
        put(live, *((name, b"3") for name in names[::50]))
    assert found == [(1, name) for name in names] + [(2, name) for name in names]
    with rebuilder.store(read_only=True) as again:
        assert [each for page in every_page(again, 100) for each in keys(page)] == found
        assert [each for page in every_page(again, generation=2) for each in keys(page)] == found[500:]


def test_keys_are_compared_byte_by_byte(live):
    """85: whatever the database's collation: capitals, underscore and accents too, in both generations alike."""
    ticket = started(live)
    for into in (LIVE, Building(ticket.id, ticket.revision)):
        put(live, *((name, b"1") for name in ("é", "z", "same", "_x", "B", "a")), into=into)
    order = ["B", "_x", "a", "same", "z", "é"]
    assert keys(live.inventory(InventoryQuery(NAME))) == [(g, key) for g in (1, 2) for key in order]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_page_loads_16_mib_at_most(live, db, damaged):
    """87: a large document and a small one are two pages, also when the first is damaged: its size was charged."""
    put(live, ("a", b"x" * VALUE_BYTES), ("b", b"1"))
    if damaged:
        without_checks(db)
        db.execute("UPDATE rebuilder.document SET digest = sha256('x') WHERE key = 'a'")
    first, second = every_page(live)
    assert (keys(first), keys(second)) == ([(1, "a")], [(1, "b")])
    assert (first.rows[0].document is None) is damaged
    assert second.rows[0].document.value == b"1"


def test_damaged_rows_are_listed_and_stop_nothing(live, db):
    """88, 89: no size, a digest that is none, a key that is none: there without a document, and what follows too."""
    put(live, *((key, b"1") for key in ("a", "b", "c", "d", "z")))
    without_checks(db)
    db.execute("UPDATE rebuilder.document SET bytes = '' WHERE key = 'a';"
               "UPDATE rebuilder.document SET digest = 'x' WHERE key = 'b';"
               r"UPDATE rebuilder.document SET key = E'c\n' WHERE key = 'c';"
               "UPDATE rebuilder.document SET digest = sha256('') WHERE key = 'd'")
    rows = [row for page in every_page(live, 2) for row in page.rows]
    assert [(row.key, row.document is None, row.why is None) for row in rows] == [
        ("a", True, False), ("b", True, False), ("c\n", True, False), ("d", True, False), ("z", False, True)]


def test_a_page_shows_what_is_behind_its_place(live):
    """92: what is put before it is not seen any more, what is put behind it is; another limit is fine (86)."""
    put(live, ("b", b"1"), ("d", b"1"))
    first = live.inventory(InventoryQuery(NAME, limit=1))
    put(live, ("a", b"1"), ("c", b"1"))
    second = live.inventory(InventoryQuery(NAME, limit=200, after=first.next))
    assert keys(second) == [(1, "c"), (1, "d")]


def test_old_generations_are_kept_for_as_long_as_is_wanted(live):
    """Retention: the live one, the open ticket's and the last ones before live stay."""
    put(live, ("a", b"1"))
    for _ in range(3):
        ticket = started(live)
        put(live, ("a", b"1"), into=Building(ticket.id, ticket.revision))
        complete(live, ticket)
    ticket = started(live)
    put(live, ("a", b"1"), into=Building(ticket.id, ticket.revision))
    assert live.expire_documents(NAME, keep=1) == 2
    assert [row.generation for row in live.inventory(InventoryQuery(NAME)).rows] == [3, 4, 5]
    step(live, ticket, Cancel())
    assert live.expire_documents(NAME, keep=0) == 1


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshot(value=b"page two", generation=1):
    return Snapshot(NAME, uuid.UUID(int=7), generation, value)


def test_a_snapshot_is_kept_once(live, rebuilder, spawn):
    """80, 81: the same again is fine, also at once; another value or generation under its number is a conflict."""
    with rebuilder.store() as other:
        both = [spawn(each.put_snapshot, snapshot()) for each in (live, other)]
        assert all(each.result() == snapshot() for each in both)
    for another in (snapshot(b"other"), snapshot(generation=2)):
        with pytest.raises(RecordConflict):
            live.put_snapshot(another)
    assert live.snapshot(NAME, uuid.UUID(int=7)) == snapshot()
    assert live.snapshot(NAME, uuid.UUID(int=8)) is None


@pytest.mark.parametrize("statement", [
    "UPDATE rebuilder.snapshot SET created_at = now()", "UPDATE rebuilder.snapshot SET bytes = bytes",
    "TRUNCATE rebuilder.snapshot"])
def test_a_snapshot_never_changes(live, db, statement):
    """82: not by SQL either, and not by the way round a row trigger; removing old ones is allowed."""
    live.put_snapshot(snapshot())
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
        db.execute(statement)


def test_a_snapshot_serves_page_two_across_a_swap(live):
    """A reader's pages stay those of one read model, though live has another generation by now."""
    put(live, *((f"k{n}", {"n": n}) for n in range(4)))
    listed = [row.document.value for row in live.inventory(InventoryQuery(NAME, 1)).rows]
    live.put_snapshot(snapshot(listed))
    page_one = live.snapshot(NAME, uuid.UUID(int=7)).value[:2]
    ticket = started(live)
    put(live, ("k0", {"n": 100}), into=Building(ticket.id, ticket.revision))
    complete(live, ticket)
    live.expire_documents(NAME, keep=0)
    page_two = live.snapshot(NAME, uuid.UUID(int=7)).value[2:]
    assert page_one + page_two == [{"n": n} for n in range(4)]
    assert live.document(NAME, "k3") is None


def test_snapshots_are_removed_by_age(live, db):
    """Retention; a damaged one is found when it is read."""
    live.put_snapshot(snapshot())
    assert live.expire_snapshots(NAME, older_than=timedelta(hours=1)) == 0
    db.execute("ALTER TABLE rebuilder.snapshot DISABLE TRIGGER USER;"
               "ALTER TABLE rebuilder.snapshot DROP CONSTRAINT snapshot_digest;"
               "UPDATE rebuilder.snapshot SET bytes = 'rot', created_at = now() - interval '1 hour'")
    with pytest.raises(RecordCorrupt):
        live.snapshot(NAME, uuid.UUID(int=7))
    assert live.expire_snapshots(NAME, older_than=timedelta(hours=1)) == 1


def test_a_ticket_that_was_not_started_writes_no_documents(live):
    """Only a running one builds."""
    ticket = asked(live)
    with pytest.raises(RecordConflict):
        put(live, ("a", b"1"), into=Building(ticket.id, ticket.revision))
    ticket = step(live, ticket, Start())
    put(live, ("a", b"1"), into=Building(ticket.id, ticket.revision))
    assert live.document(NAME, "a", generation=ticket.generation).value == b"1"
