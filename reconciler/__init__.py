"""Informers, stores, controllers and a manager: what controller-runtime is to Go."""
