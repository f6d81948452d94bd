"""The rule for collections of embedding tables, as TorchRec has them."""

from typing import Any

from torch import fx

from ...distributed.torchrec import bags_of, is_collection, kept_configs, keyed_values, places_of
from .base import CutRule
from .facts import Form
from .writer import Writer
from .written import Written


class Keyed(CutRule):
    """The values of a keyed tensor: tables that only dropped fields read leave the collection."""

    reads = None  # the keyed tensor itself has no rows

    def write(self, node: fx.Node, writer: Writer) -> Written:
        source = node.all_input_nodes[0]
        keys: Any = node.args[1]
        live = writer.view.live(node)
        places = places_of(writer.view.trace.values[source].length_per_key())
        kept = []
        columns: list[int] = []
        for key, place in zip(keys, places, strict=True):
            if bool(live[place].any()):
                kept.append(key)
                columns += range(place.start, place.stop)
        if len(kept) == len(keys):
            return Written(writer.copy(node, writer.complete))
        names = tuple(self._cut(source, kept, writer))
        new = writer.graph.call_function(keyed_values, (writer.other(source), names))
        return Written(new, Form(1, tuple(columns)))

    def _cut(self, source: fx.Node, kept: list[str], writer: Writer) -> list[str]:
        """Keep these outputs of the collection alone; return their new names."""
        collection = writer.view.trace.module(source)
        if not is_collection(collection) or len(source.users) > 1:
            return kept
        assert collection is not None
        hooked = collection._forward_hooks or collection._forward_pre_hooks
        if hooked or writer.view.uncut(*collection.parameters()):
            writer.notes.append(
                f"{source.target}: its tables stay, since they are shared or the collection has "
                "hooks."
            )
            return kept
        before = collection.embedding_bag_configs()  # type: ignore[operator]
        after = kept_configs(before, kept)
        writer.collections[str(source.target)] = after
        renamed = {(bag.table, bag.feature): bag.name for bag in bags_of(after)}
        bag_of = {bag.name: bag for bag in bags_of(before)}
        return [renamed[bag_of[key].table, bag_of[key].feature] for key in kept]
