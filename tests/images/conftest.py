"""`inside` holds tests that run in containers of the images, not here."""

from tests.images.support.pushing import desk, guarded, registry

__all__ = ["desk", "guarded", "registry"]

collect_ignore = ["inside"]
