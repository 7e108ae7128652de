"""TensorFlow's messages as our tables declare them. The parity tests check the tables."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from aioflow import protos
from aioflow.errors import DataLossError


def some_graph() -> protos.Message:
    graph = protos.message("GraphDef")()
    node = graph.node.add(name="a", op="Const", input=["b:1", "^c"])
    node.attr["ints"].list.i.extend([1, -2])
    node.attr["of"].func.name = "f"
    node.attr["kind"].type = protos.enum("DataType").Value("DT_FLOAT_REF")
    graph.library.function.add().ret["x"] = "y:out:0"
    return graph


def test_message_round_trips_through_bytes_and_text() -> None:
    graph = some_graph()
    assert protos.read("GraphDef", protos.to_bytes(graph)) == graph
    assert protos.read("GraphDef", protos.to_text(graph).encode()) == graph


def test_text_may_begin_with_comments() -> None:
    assert protos.read("GraphDef", b"# by hand\n\n versions { producer: 3 }").versions.producer == 3


def test_an_any_holds_a_message_under_its_published_name() -> None:
    asset = protos.message("AssetFileDef")(filename="vocabulary.txt")
    collection = protos.message("CollectionDef")()
    collection.any_list.value.add().Pack(asset)
    assert collection.any_list.value[0].type_url == "type.googleapis.com/tensorflow.AssetFileDef"
    found = protos.message("AssetFileDef")()
    assert protos.parse_text("CollectionDef", protos.to_text(collection)).any_list.value[0].Unpack(found)
    assert found == asset


def test_malformed_messages_raise_data_loss_error() -> None:
    whole = protos.to_bytes(some_graph())
    with pytest.raises(DataLossError, match="not a GraphDef"):
        protos.read("GraphDef", whole[:-1])
    with pytest.raises(DataLossError, match="as text"):
        protos.read("GraphDef", b"nodes { }")
    with pytest.raises(DataLossError, match="as text"):
        protos.parse_text("GraphDef", b"\xff\xfe")


def nested(depth: int) -> str:
    return "func { attr { key: 'a' value { " * depth + "}}}" * depth


@pytest.mark.parametrize("escape", [r"\I", r"\?", r"\777", r"\400", r"a\\\q"])
def test_invalid_escapes_raise_data_loss_error(escape: str) -> None:
    with pytest.raises(DataLossError, match=r"2: a string has an invalid escape"):
        protos.parse_text("NodeDef", f'# C:\\Images\nname: "{escape}"')


def test_escapes_of_c_are_read() -> None:
    node = protos.parse_text(
        "NodeDef",
        r"""# it's \I here
        name: "\"\'\\I\n\t\x41\102\7" device: '\'"' """,
    )
    assert (node.name, node.device) == ("\"'\\I\n\tAB\7", "'\"")


def test_deep_nesting_ends_in_an_error() -> None:
    with pytest.raises(DataLossError):
        protos.parse_text("AttrValue", nested(20_000))
    deep = protos.to_bytes(protos.parse_text("AttrValue", nested(60)))
    with pytest.raises(DataLossError):
        protos.parse("AttrValue", deep)


def of_another_pool(package: str) -> protos.Message:
    """Return a GraphDef as another library declares it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}/graph.proto", package=package)
    file.message_type.add(name="GraphDef")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.GraphDef"))()


def test_messages_of_other_pools_are_recognized() -> None:
    assert protos.is_message(of_another_pool("tensorflow"), "GraphDef")
    assert protos.is_message(of_another_pool("tensorboard"), "GraphDef")
    assert not protos.is_message(of_another_pool("onnx"), "GraphDef")
    assert protos.is_message(some_graph(), "GraphDef")
    assert not protos.is_message(some_graph(), "NodeDef")
    assert not protos.is_message({}, "GraphDef")
