"""The errors that scripts raise and catch."""

from __future__ import annotations


class ClientError(Exception):
    """An error of the user's code or request."""


class ChannelDoesNotExistError(ClientError):
    def __init__(self, channel_name: str) -> None:
        super().__init__(f"Channel {channel_name} is not a valid channel.")


class UnsupportedFormatError(ClientError):
    def __init__(self, content_type: object, **options: object) -> None:
        super().__init__(f"Content type {content_type} is not supported by this framework.")
        self.message = str(self)
