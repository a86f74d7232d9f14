"""A blocker is described so that somebody can act on it."""

from rebuilder.domain.blocker import Blocker


def test_what_is_known_is_said_on_one_line():
    blocker = Blocker(pid=12, user="app", application="web", state="idle in transaction", age_seconds=3.25,
                      query="UPDATE x\n   SET y")
    assert blocker.describe() == "pid 12 (user app, application web, idle in transaction for 3.2 s): UPDATE x SET y"


def test_what_is_not_known_is_left_out():
    assert Blocker(pid=12).describe() == "pid 12"
    assert Blocker(pid=12, state="active").describe() == "pid 12 (active)"
    assert Blocker(pid=12, user="app", age_seconds=1.0).describe() == "pid 12 (user app, open for 1.0 s)"


def test_a_hidden_query_comes_with_the_grant():
    assert "GRANT pg_read_all_stats" in Blocker(pid=12, user="app", hidden=True).describe()


def test_a_prepared_transaction_is_ended_by_its_name():
    text = Blocker(pid=None, user="app", gid="t-1", age_seconds=60.0).describe()
    assert text == ("prepared transaction 't-1' (user app, prepared 60.0 s ago): end it with COMMIT PREPARED or"
                    " ROLLBACK PREPARED")
    assert Blocker(pid=None, gid="t-1").describe().startswith("prepared transaction 't-1': end it")


def test_one_that_waits_for_us_is_marked():
    assert "which waits for this run itself" in Blocker(pid=12, waiting_on_us=True, query="CREATE INDEX").describe()


def test_it_is_json():
    assert Blocker(pid=12, user="app").to_json() == {
        "pid": 12, "user": "app", "application": None, "state": None, "age_seconds": None, "query": None, "gid": None,
        "waiting_on_us": False, "hidden": False}
