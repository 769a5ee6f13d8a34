from hypothesis import HealthCheck, settings

# How long an example takes says nothing about behaviour, least of all on a busy machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# What `make fuzz` asks for.
settings.register_profile("fuzz", deadline=None, max_examples=10_000)
