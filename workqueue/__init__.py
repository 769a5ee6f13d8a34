"""client-go's rate-limited, de-duplicating work queue for Python.

A key that is added many times before a worker takes it is worked on once; one that is added while a
worker has it is worked on once more; and no two workers ever have the same key.
"""

from workqueue._core import Order, Statistics
from workqueue.clock import SYSTEM_CLOCK, Clock, SystemClock
from workqueue.limiters import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    WithMaxWaitRateLimiter,
    default_controller_rate_limiter,
    default_item_based_rate_limiter,
)
from workqueue.metrics import Gauges, Instruments, MetricsProvider
from workqueue.parallel import parallelize_until
from workqueue.queue import (
    DelayingQueue,
    PriorityQueue,
    Queue,
    RateLimitingQueue,
    ShutDown,
)

__all__ = [
    "SYSTEM_CLOCK",
    "BucketRateLimiter",
    "Clock",
    "DelayingQueue",
    "Gauges",
    "Instruments",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "MaxOfRateLimiter",
    "MetricsProvider",
    "Order",
    "PriorityQueue",
    "Queue",
    "RateLimiter",
    "RateLimitingQueue",
    "ShutDown",
    "Statistics",
    "SystemClock",
    "WithMaxWaitRateLimiter",
    "default_controller_rate_limiter",
    "default_item_based_rate_limiter",
    "parallelize_until",
]
