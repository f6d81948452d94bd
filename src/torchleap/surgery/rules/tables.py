"""The rule for what a collection of embedding tables returns: tables that only dropped fields read leave the collection."""

from torch import fx

from ...distributed.torchrec import bags_of, is_collection, kept_configs, keyed_values, places_of
from .base import Opaque
from .facts import Form
from .writer import Writer, Written


class Keyed(Opaque):
    """The values of a keyed tensor: blocks of which nothing is read are not looked up."""

    reads = None  # the keyed tensor itself has no rows

    def write(self, node: fx.Node, writer: Writer) -> Written:
        """Ask the collection for what is read alone."""
        source, keys = node.all_input_nodes[0], list(node.args[1])  # type: ignore[arg-type]
        live, places = (
            writer.view.live(node),
            places_of(writer.view.trace.values[source].length_per_key()),
        )
        kept = [
            (key, place) for key, place in zip(keys, places, strict=True) if bool(live[place].any())
        ]
        if len(kept) == len(keys):
            return Written(writer.copy(node, writer.whole))
        names = tuple(self._cut(source, [key for key, _ in kept], writer))
        new = writer.graph.call_function(keyed_values, (writer.other(source), names))
        return Written(
            new,
            Form(
                1, tuple(column for _, place in kept for column in range(place.start, place.stop))
            ),
        )

    def _cut(self, source: fx.Node, kept: list[str], writer: Writer) -> list[str]:
        """Keep these outputs of the collection alone; returns what they are called then."""
        collection = writer.view.trace.module(source)
        if not is_collection(collection) or len(source.users) > 1:
            return kept
        assert collection is not None
        if (
            writer.view.uncut(*collection.parameters())
            or collection._forward_hooks
            or collection._forward_pre_hooks
        ):
            writer.notes.append(
                f"{source.target}: its tables stay, since they are shared or the collection has hooks."
            )
            return kept
        before = collection.embedding_bag_configs()  # type: ignore[operator]
        after = kept_configs(before, kept)
        writer.collections[str(source.target)] = after
        renamed = {(bag.table, bag.feature): bag.name for bag in bags_of(after)}
        wanted = {
            bag.name: renamed[bag.table, bag.feature] for bag in bags_of(before) if bag.name in kept
        }
        return [wanted[key] for key in kept]
