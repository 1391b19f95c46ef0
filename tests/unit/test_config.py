"""Settings: where they come from, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell_server import config


def load(*arguments: str) -> config.Settings:
    return config.load(arguments, "stepwell server")


def problem(*arguments: str) -> str:
    with pytest.raises(config.InvalidSettings) as refused:
        load(*arguments)
    return str(refused.value)


def test_defaults_serve_this_machine_only_from_an_sqlite_file() -> None:
    settings = load()

    assert settings.listen == "127.0.0.1:7350"
    assert settings.database_url.get_backend_name() == "sqlite"
    assert settings.serves_reflection


def test_a_flag_beats_the_environment_and_that_beats_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "stepwell.toml"
    file.write_text(
        'listen = "127.0.0.1:1"\nops_listen = "127.0.0.1:1"\ndispatch = "external"\n[limits]\nbatch_items = 7\n'
    )
    monkeypatch.setenv("STEPWELL_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("STEPWELL_OPS_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("STEPWELL_LIMITS__PAYLOAD_BYTES", "99")

    settings = load("--config", str(file), "--listen", "127.0.0.1:3")

    assert (settings.listen, settings.ops_listen, settings.dispatch) == ("127.0.0.1:3", "127.0.0.1:2", "external")
    assert (settings.limits.batch_items, settings.limits.payload_bytes) == (7, 99)


def test_the_file_can_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "stepwell.toml"
    file.write_text('listen = "127.0.0.1:1"\n')
    monkeypatch.setenv("STEPWELL_CONFIG", str(file))

    assert load().listen == "127.0.0.1:1"


def test_a_file_that_is_missing_or_misspelt_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "stepwell.toml"
    assert "No such file" in problem("--config", str(file))

    file.write_text('lisen = "127.0.0.1:1"\n')
    assert "lisen" in problem("--config", str(file))

    file.write_text("listen = \n")
    assert str(file) in problem("--config", str(file))


@pytest.mark.parametrize("address", ["7350", ":7350", "localhost", "localhost:x", "localhost:70000"])
def test_an_address_that_is_none_is_told_by_its_flag(address: str) -> None:
    assert problem("--listen", address).startswith("listen: must be HOST:PORT")


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_that_is_none_is_refused(url: str) -> None:
    assert "database" in problem("--database", url)


def test_a_password_is_never_shown() -> None:
    settings = load("--database", "postgresql://me:hunter2@db/stepwell")

    assert "hunter2" not in repr(settings)
    assert "hunter2" not in problem("--database", "oracle://me:hunter2@db/stepwell")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "localhost", "[::1]"])
def test_loopback_needs_no_protection(host: str) -> None:
    assert load("--listen", f"{host}:7350").serves_loopback_only


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "example.org"])
def test_other_machines_are_let_in_only_with_tls_and_a_policy_or_when_told(host: str) -> None:
    listen = ("--listen", f"{host}:7350")
    tls = ("--tls-cert", __file__, "--tls-key", __file__)

    assert "lets other machines in" in problem(*listen)
    assert "lets other machines in" in problem(*listen, *tls)
    assert "lets other machines in" in problem(*listen, "--policy", "a:b")
    assert not load(*listen, *tls, "--policy", "a:b").serves_reflection
    assert not load(*listen, "--insecure").serves_reflection


def test_half_of_tls_and_missing_files_are_refused() -> None:
    assert "go together" in problem("--tls-cert", __file__)
    assert "there is no file c.pem" in problem("--tls-cert", "c.pem", "--tls-key", __file__)
    assert "there is no file ca.pem" in problem("--webhook-ca-file", "ca.pem")


def test_webhooks_are_off_and_nobody_is_vouched_for_until_somebody_says_so() -> None:
    settings = load()

    assert (settings.webhooks, settings.allowed_webhooks, settings.webhook_ca_file) == (False, frozenset(), None)
    assert load("--webhooks").webhooks


def test_webhooks_that_need_not_be_public_can_be_listed_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "stepwell.toml"
    file.write_text('webhook_allow = ["a.test:1", "b.test:2"]\n')
    listed = frozenset({("a.test", 1), ("b.test", 2)})

    assert load("--webhook-allow", "A.test:1", "--webhook-allow", "b.test.:2").allowed_webhooks == listed
    assert load("--config", str(file)).allowed_webhooks == listed
    monkeypatch.setenv("STEPWELL_WEBHOOK_ALLOW", "a.test:1, b.test:2")
    assert load().allowed_webhooks == listed
    assert load("--webhook-allow", "[0:0::1]:3").allowed_webhooks == {("::1", 3)}


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "a b:1", "*:1", "a..b:1"])
def test_a_webhook_without_host_or_port_cannot_be_listed(address: str) -> None:
    assert "webhook-allow" in problem("--webhook-allow", address)
    assert "must be HOST:PORT" in problem("--webhook-allow", address)


def test_libpq_words_are_understood_and_others_refused() -> None:
    assert load("--database", "postgres://db/x?sslmode=require").database_url.drivername == "postgresql"
    assert "not known: sslcert" in problem("--database", "postgresql://db/x?sslcert=y")


def test_failpoints_announce_themselves_and_are_refused_where_other_machines_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load().warnings() == []
    monkeypatch.setenv("STEPWELL_FAILPOINT", "before-commit:1")

    assert load().warnings() == ["STEPWELL_FAILPOINT is set: this server will crash at before-commit:1"]
    assert "STEPWELL_FAILPOINT" in problem("--listen", "0.0.0.0:7350", "--insecure")


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("postgresql://db.test/x", True),
        ("postgresql://db.test/x?sslmode=verify-full", False),
        ("postgresql://127.0.0.1/x", False),
        ("postgresql:///x?host=/run/postgresql", False),
        ("sqlite:///x.db", False),
    ],
)
def test_a_database_elsewhere_without_sslmode_is_warned_of(url: str, warned: bool) -> None:
    assert any("sslmode" in one for one in load("--database", url).warnings()) is warned


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_tls_key_that_everybody_can_read_is_warned_of(tmp_path: Path, mode: int, warned: bool) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        file.touch()
    key.chmod(mode)

    assert bool(load("--tls-cert", str(cert), "--tls-key", str(key)).warnings()) is warned


@pytest.mark.parametrize(
    ("variable", "warning"),
    [
        ("STEPWELL_DATABASE_URL", "STEPWELL_DATABASE_URL is not a setting; did you mean STEPWELL_DATABASE?"),
        ("STEPWELL_LIMIT__TIMER", "STEPWELL_LIMIT__TIMER is not a setting; did you mean STEPWELL_LIMITS__TIMER?"),
        ("stepwell_lisen", "stepwell_lisen is not a setting; did you mean STEPWELL_LISTEN?"),
        ("STEPWELL_Q", "STEPWELL_Q is not a setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, variable: str, warning: str
) -> None:
    monkeypatch.setenv(variable, "1")

    assert config.unknown_variables() == [warning]


@pytest.mark.parametrize(
    "variable",
    [
        *("STEPWELL_LIMITS__TIMER", "STEPWELL_LIMITS", "stepwell_database", "STEPWELL_CONFIG", "STEPWELL_FAILPOINT"),
        *("STEPWELL_SERVER", "STEPWELL_TLS_CA", "STEPWELL_TOKEN", "STEPWELL_TEST_PG", "STEPWELLS"),
        *("STEPWELL_SERVICE_HOST", "STEPWELL_PORT", "STEPWELL_PORT_7350_TCP_ADDR", "STEPWELL_API_SERVICE_PORT_GRPC"),
    ],
)
def test_settings_and_variables_that_others_read_are_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")

    assert config.unknown_variables() == []
