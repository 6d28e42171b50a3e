"""Settings from flags, environment and file: precedence, what is refused and where it stands, and the way back."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot.cli.serve_settings import ServeSettings
from prefixpilot.errors import ConfigError
from prefixpilot.proxy.configuration import Loaded, Secret, Sources, as_toml, load, schema
from prefixpilot.proxy.settings import ProxySettings

ENGINE = {"--engine": "http://127.0.0.1:9"}


@dataclass(frozen=True, slots=True)
class Inner:
    """A table.

    Attributes:
        names: a list of
            them.
        level: how loud.
        key: a secret.
    """

    names: tuple[str, ...] = ()
    level: Literal["low", "high"] = "low"
    key: Secret | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    """A root.

    Attributes:
        text, other: two texts.
        ratio: a number.
        limit: an integer or all.
        table: pairs.
        on: a switch.

    Raises:
        ConfigError: the ratio is not positive.
    """

    text: str = "a"
    other: str | None = None
    ratio: float = 1.0
    limit: int | Literal["all"] = 5
    table: Mapping[str, str] = field(default_factory=dict)
    on: bool = False
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise ConfigError("ratio", f"is {self.ratio}", "use a number above 0")


def read(tmp_path: Path, text: str, **more: Mapping[str, str]) -> Loaded[Outer]:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return load(Outer, Sources(more.get("flags", {}), more.get("environ", {}), path))


def test_a_field_is_a_key_a_variable_and_a_flag_and_its_docstring_is_its_help() -> None:
    names = {s.key: (s.env, s.flag, s.doc) for s in schema(Outer)}
    assert names["text"] == ("PREFIXPILOT_TEXT", "--text", "two texts.")
    assert names["other"][2] == "two texts."
    assert names["inner.names"] == ("PREFIXPILOT_INNER_NAMES", "--inner-names", "a list of them.")
    assert names["inner.key"] == ("PREFIXPILOT_INNER_KEY", None, "a secret.")
    assert names["inner.key_file"][:2] == ("PREFIXPILOT_INNER_KEY_FILE", "--inner-key-file")


def test_every_setting_of_serve_is_documented() -> None:
    assert [s.key for s in schema(ServeSettings) if not s.doc] == []


def test_flags_go_before_the_environment_that_before_the_file_that_before_the_defaults(tmp_path: Path) -> None:
    loaded = read(
        tmp_path,
        'text = "file"\nother = "file"\nratio = 2\n',
        environ={"PREFIXPILOT_TEXT": "env", "PREFIXPILOT_OTHER": "env"},
        flags={"--text": "flag"},
    )
    s = loaded.settings
    assert (s.text, s.other, s.ratio, s.limit) == ("flag", "env", 2.0, 5)
    assert isinstance(s.ratio, float)
    assert loaded.origins["text"] == "--text"
    assert loaded.origins["other"] == "PREFIXPILOT_OTHER"
    assert loaded.origins["ratio"] == f"{tmp_path / 'settings.toml'}:3"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("--on", "true", True),
        ("--on", "No", False),
        ("--limit", "all", "all"),
        ("--limit", "7", 7),
        ("--ratio", "0.5", 0.5),
        ("--other", "", None),
        ("--text", "", ""),
        ("--table", "a=1, b=2", {"a": "1", "b": "2"}),
    ],
)
def test_texts_are_read_as_the_type_of_their_setting(name: str, text: str, value: object) -> None:
    loaded = load(Outer, Sources({name: text}))
    assert getattr(loaded.settings, name[2:]) == value


@pytest.mark.parametrize(
    ("flag", "text", "remedy"),
    [
        ("--on", "perhaps", "true or false"),
        ("--limit", "few", "an integer or all"),
        ("--ratio", "x", "a number"),
        ("--inner-level", "loud", "one of: low, high"),
        ("--table", "a", "a table of texts"),
    ],
)
def test_a_text_of_another_type_is_refused_by_name(flag: str, text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Outer, Sources({flag: text}))
    assert caught.value.field == flag[2:].replace("-", ".")
    assert flag in caught.value.reason and text in caught.value.reason
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        ("txt = 1", "txt", "did you mean text?"),
        ("level = 'low'", "level", "did you mean inner.level?"),
        ("[inner]\nlevl = 'low'", "inner.levl", "did you mean inner.level?"),
        ("[outer]\n", "outer", "did you mean"),
        ("zzzzzz = 1", "zzzzzz", "--print-config"),
        ("text = 1", "text", "use a text"),
        ("ratio = true", "ratio", "use a number"),
        ("limit = 1.5", "limit", "use an integer or all"),
        ("inner = 3", "inner", "did you mean"),
        ("[inner]\nnames = [1]", "inner.names", "use a list of texts"),
    ],
)
def test_a_wrong_key_or_value_in_the_file_names_its_line(tmp_path: Path, text: str, named: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.field == named
    line = len(text.rstrip("\n").split("\n"))
    assert f"settings.toml:{line}" in caught.value.reason
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("data", [b"text = ", b"\xff", b"a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        load(Outer, Sources(file=path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Outer, Sources(file=tmp_path / "none.toml"))


def test_what_the_dataclass_refuses_names_the_source_that_gave_it() -> None:
    with pytest.raises(ConfigError, match=r"ratio: is -1\.0 \(set by PREFIXPILOT_RATIO\)"):
        load(Outer, Sources(environ={"PREFIXPILOT_RATIO": "-1"}))
    with pytest.raises(ConfigError, match=r"tenants\.header: is 'a b' \(set by --tenants-header\)"):
        load(ProxySettings, Sources({**ENGINE, "--tenants-header": "a b"}))


def test_what_must_be_given_and_is_not_is_named_with_its_three_names() -> None:
    assert next(s for s in schema(ProxySettings) if s.key == "engine").default is MISSING
    with pytest.raises(ConfigError, match="engine: is not given; use --engine, PREFIXPILOT_ENGINE or `engine =`"):
        load(ProxySettings, Sources())


def test_a_variable_with_a_slip_is_refused_and_others_are_told() -> None:
    with pytest.raises(ConfigError, match="PREFIXPILOT_INNER_LEVEL is one that is alike"):
        load(Outer, Sources(environ={"PREFIXPILOT_INNER_LEVL": "low"}))
    environ = {"PREFIXPILOT_SAMPLES_DIRECTORY": "x", "PATH": "/bin", "PREFIXPILOT_SERVICE_HOST": "10.0.0.1"}
    loaded = load(Outer, Sources(environ=environ))
    assert len(loaded.warnings) == 1 and "PREFIXPILOT_SAMPLES_DIRECTORY" in loaded.warnings[0]


def test_the_variable_that_kubernetes_sets_for_a_service_of_our_name_is_left_out() -> None:
    loaded = load(ProxySettings, Sources(ENGINE, {"PREFIXPILOT_PORT": "tcp://10.0.0.1:80"}))
    assert loaded.settings.port == 8765
    assert "Kubernetes" in loaded.warnings[0]


def test_two_settings_of_one_name_are_a_bug_that_is_seen_at_once() -> None:
    @dataclass(frozen=True)
    class Clash:
        log_level: str = ""
        log: Inner = field(default_factory=Inner)

    hints = {"log_level": str, "log": Inner}
    Clash.__annotations__ = hints
    with pytest.raises(TypeError, match="LOG_LEVEL"):
        schema(Clash)


class TestSecrets:
    def test_from_the_environment_and_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_text(" s3cret\n")
        assert load(Outer, Sources(environ={"PREFIXPILOT_INNER_KEY": "abc"})).settings.inner.key == Secret("abc")
        assert load(Outer, Sources({"--inner-key-file": str(path)})).settings.inner.key == Secret("s3cret")
        assert read(tmp_path, f'[inner]\nkey_file = "{path}"').settings.inner.key == Secret("s3cret")

    def test_no_flag_takes_the_value_itself(self) -> None:
        assert "--inner-key" not in {s.flag for s in schema(Outer)}

    def test_a_flag_goes_before_the_environment(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_text("from the file")
        loaded = load(Outer, Sources({"--inner-key-file": str(path)}, {"PREFIXPILOT_INNER_KEY": "abc"}))
        assert loaded.settings.inner.key == Secret("from the file")

    def test_both_from_one_source_are_refused(self) -> None:
        environ = {"PREFIXPILOT_INNER_KEY": "abc", "PREFIXPILOT_INNER_KEY_FILE": "x"}
        with pytest.raises(ConfigError, match=r"inner\.key: is given twice"):
            load(Outer, Sources(environ=environ))

    @pytest.mark.parametrize("data", [b"", b" \n", b"\xff\xfe"])
    def test_a_file_without_a_text_is_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "key"
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=str(path)):
            load(Outer, Sources({"--inner-key-file": str(path)}))

    def test_it_is_shown_nowhere(self, tmp_path: Path) -> None:
        loaded = load(Outer, Sources(environ={"PREFIXPILOT_INNER_KEY": "hush"}))
        assert "hush" not in repr(loaded) + str(loaded.settings) + as_toml(loaded)
        assert "# key is set, and not shown" in as_toml(loaded)
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, '[inner]\nkey = ["hush"]')
        assert "hush" not in str(caught.value)

    def test_a_short_token_is_refused_without_being_shown(self) -> None:
        with pytest.raises(ConfigError, match=r"admin\.token: is too short") as caught:
            load(ProxySettings, Sources(ENGINE, {"PREFIXPILOT_ADMIN_TOKEN": "hush"}))
        assert "hush" not in str(caught.value)


def test_what_is_printed_reads_back_to_the_same(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    flags = {
        "--engine": "embedded",
        "--admin-token-file": str(key),
        "--tenants-keys": f"{'ab' * 32}=a",
        "--annotate": "all",
        "--gate": "true",
        "--tenants-trusted-peers": "10.0.0.0/8, ::1",
    }
    first = load(ServeSettings, Sources(flags))
    path = tmp_path / "printed.toml"
    path.write_text(as_toml(first))
    second = load(ServeSettings, Sources(file=path))
    assert second.settings == first.settings
    assert second.settings.admin.token == Secret("0123456789abcdef")
    assert "0123456789abcdef" not in as_toml(first)


texts = st.text(st.characters(codec="utf-8"))


@given(
    text=texts,
    other=st.none() | texts,
    ratio=st.floats(min_value=0, exclude_min=True, allow_nan=False),
    limit=st.integers() | st.just("all"),
    table=st.dictionaries(texts, texts, max_size=3),
    names=st.lists(texts, max_size=3),
)
@settings(max_examples=60)
def test_any_settings_read_back_from_what_is_printed(
    text: str,
    other: str | None,
    ratio: float,
    limit: int | Literal["all"],
    table: dict[str, str],
    names: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    outer = Outer(text, other, ratio, limit, table, True, Inner(tuple(names)))
    printed = as_toml(Loaded(outer, {"text": "a\nfile"}, ()))
    tomllib.loads(printed)
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(printed.encode())
    assert load(Outer, Sources(file=path)).settings == outer
