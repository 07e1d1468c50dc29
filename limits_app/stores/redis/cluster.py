"""The Redis store on a cluster."""

from limits_app.stores.redis.store import RedisStore


class RedisClusterStore(RedisStore):
    """To be written."""
