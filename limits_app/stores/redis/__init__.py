"""The Redis store: state on a Redis or Valkey server that all machines share."""

from limits_app.stores.redis.cluster import RedisClusterStore
from limits_app.stores.redis.opening import default_redis_store, open_redis_store
from limits_app.stores.redis.store import RedisStore

__all__ = ["RedisClusterStore", "RedisStore", "default_redis_store", "open_redis_store"]
