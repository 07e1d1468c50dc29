"""The Redis store: state on a Redis or Valkey server that all machines share."""

from limits_app.stores.redis.acl import acl_commands, acl_rules
from limits_app.stores.redis.cluster import RedisClusterStore, open_redis_store
from limits_app.stores.redis.opening import prefix_for
from limits_app.stores.redis.store import RedisStore

__all__ = ["RedisClusterStore", "RedisStore", "acl_commands", "acl_rules", "open_redis_store", "prefix_for"]
