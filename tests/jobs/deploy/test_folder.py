"""`atlas deploy init`: what it writes, who can read it, what it refuses."""

import ssl
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from atlas.config.deploy import load_deployment
from atlas.config.load import load_config
from atlas.config.node import load_node
from atlas.errors import InputError
from atlas.jobs.deploy.folder import make_deployment, read_federation
from tests.jobs.deploy.nodes import CLIENTS, settings


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy") / "d"
    nodes = {"left": CLIENTS[:2], "right": CLIENTS[2:]}
    make_deployment(folder, settings(), nodes, host="example.test", port=9999)
    return folder


def test_keys_are_their_owners_alone_and_no_two_nodes_share_one(made):
    private = [*made.rglob("*.key")]
    assert len(private) == 6  # the authority's, the server's, two of each node
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    public = {path.read_bytes() for path in made.rglob("node.pub")}
    assert len(public) == 2
    for path in made.rglob("node.key"):
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
        assert key.curve.name == "secp384r1"


def test_the_servers_certificate_is_signed_and_names_its_host(made):
    authority = x509.load_pem_x509_certificate((made / "ca/ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((made / "server/server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "example.test" in names.get_values_for_type(x509.DNSName)
    ssl.create_default_context(cafile=str(made / "nodes/left/ca.pem"))


def test_settings_read_back_and_scripts_are_sound(made):
    found = load_deployment(made)
    assert found.address == "example.test:9999"
    assert found.listen == "0.0.0.0"
    assert len({node.port for node in found.nodes.values()} | {found.port}) == 3
    assert list(load_node(made / "nodes/left").clients) == list(CLIENTS[:2])
    config = read_federation(made)
    assert config.engine == "flower"
    assert read_federation(made, ["rounds=9"]).rounds == 9
    for script in made.rglob("*.sh"):
        assert script.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert "example.test:9999" in (made / "README.md").read_text()


def test_a_clients_file_is_named_on_its_node_and_nowhere_else(tmp_path):
    config = load_config("examples/clients/clients.yaml", ["backbone.name=tiny"])
    make_deployment(tmp_path / "d", config, {})
    assert load_node(tmp_path / "d/nodes/bakery").clients["bakery"].name == "bakery.csv"
    others = [p for p in (tmp_path / "d").rglob("*") if p.is_file() and p.parent.name != "bakery"]
    assert not any(b"bakery.csv" in path.read_bytes() for path in others)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({"one": ["nobody"]}, "no client 'nobody'"),
        ({"one": CLIENTS, "two": CLIENTS[:1]}, "on two nodes"),
        ({"one": CLIENTS[:2]}, "no node for"),
        ({"a/b": CLIENTS}, "node name"),
    ],
)
def test_nodes_that_do_not_match_the_clients_are_refused(tmp_path, nodes, reason):
    with pytest.raises(InputError, match=reason):
        make_deployment(tmp_path / "d", settings(), nodes)
    assert not (tmp_path / "d").exists()


def test_what_needs_everybodys_data_is_refused_and_so_is_a_folder_that_exists(tmp_path):
    with pytest.raises(InputError, match="data of several clients"):
        make_deployment(tmp_path / "d", settings("strategy=pooled"), {})
    with pytest.raises(InputError, match="exists already"):
        make_deployment(tmp_path, settings(), {})
    with pytest.raises(InputError, match="deploy init"):
        load_deployment(tmp_path)


def test_a_nodes_settings_are_checked(tmp_path):
    for text, reason in (
        ("clients: {a: null}\ncolour: 1\n", "colour"),
        ("clients: {}\n", "clients"),
        ("clients: {a: null}\ntests: {b: b.csv}\n", "tests.b"),
    ):
        (tmp_path / "node.yaml").write_text(text)
        with pytest.raises(InputError, match=reason):
            load_node(tmp_path)
