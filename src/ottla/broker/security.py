"""What a node's configuration says about security, made into the objects that decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.security.authorizer import STANDARD_AUTHORIZER, Authorizer, parse_super_users

if TYPE_CHECKING:
    from ottla.broker.cluster import Cluster
    from ottla.cluster.server_config import ServerConfig


def make_authorizer(cluster: Cluster, config: ServerConfig) -> Authorizer | None:
    """The authorizer that `authorizer.class.name` asks for; ValueError for one that there is not."""
    name = config.value("authorizer.class.name")
    if not name:
        return None
    if not isinstance(name, str) or name.rpartition(".")[2] != STANDARD_AUTHORIZER:
        raise ValueError(
            f"authorizer.class.name: {name} cannot be loaded here; use "
            f"org.apache.kafka.metadata.authorizer.{STANDARD_AUTHORIZER}, or nothing for no authorizer"
        )
    return Authorizer(
        lambda: cluster.image.acls.values(),
        super_users=parse_super_users(config.values.get("super.users", "")),
        allow_everyone_if_no_acl=config.values.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true",
    )
