"""Amazon ECR's side of a push: whose registry it is, its repositories, and who may push.

boto3 is imported when a registry is ECR's, not before. AWS_ENDPOINT_URL is obeyed, as by every
AWS tool. Source: the ECR API reference (CreateRepository, GetAuthorizationToken).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from scripts.images.errors import ImageError
from scripts.images.registry import Login

__all__ = ["OWN", "Ecr", "credentials", "have_repository", "own_host", "recognised"]

OWN = "ecr"  # as --registry: the registry of the credentials' own account and region
CONNECT_S, READ_S = 10, 30
_FORM = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z]{2}(-[a-z]+)+-\d)"
    r"\.amazonaws\.com(\.cn)?"
)
_LOOKS = re.compile(r"\.dkr[.-]ecr\b")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_UNKNOWN_KEY = (
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "AuthFailure",
)
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")


class Ecr(NamedTuple):
    """A registry of ECR: every account has one in each region."""

    host: str
    account: str
    region: str


def recognised(host: str) -> Ecr | None:
    """The registry when the host's name has ECR's form, None when it is another's.

    Raises ImageError for a name that is nearly of that form.
    """
    found = _FORM.fullmatch(host)
    if found:
        return Ecr(host, found["account"], found["region"])
    if _LOOKS.search(host):
        raise ImageError(
            f"--registry {host} is nearly the name of a registry of ECR, but not quite",
            "its form is <account of 12 digits>.dkr.ecr.<region>.amazonaws.com (.cn in China)",
        )
    return None


def own_host() -> str:
    """The host name of the registry of the credentials' account, in their region."""
    session = _session()
    region = session.region_name or os.environ.get("AWS_REGION")  # boto3 reads the other one
    if not region:
        raise ImageError(
            f"--registry {OWN}: no AWS region is set", "set AWS_REGION, or give --registry in full"
        )
    with _explained("asking AWS whose credentials these are", region):
        identity = _client(session, "sts", region).get_caller_identity()
    suffix = "amazonaws.com.cn" if ":aws-cn:" in identity["Arn"] else "amazonaws.com"
    return f"{identity['Account']}.dkr.ecr.{region}.{suffix}"


def have_repository(ecr: Ecr, name: str, create: bool, say: Callable[[str], None]) -> None:
    """The repository is there afterwards. `create`: it is made if it is missing.

    One that is made has immutable tags and is scanned at every push. Without leave to look, and
    nothing to make, the push is left to find out.
    """
    session = _session()
    client = _client(session, "ecr", ecr.region)
    with _explained(f"looking for the repository {name} at {ecr.host}", ecr.region):
        try:
            found = client.describe_repositories(registryId=ecr.account, repositoryNames=[name])
        except client.exceptions.RepositoryNotFoundException:
            found = None
        except client.exceptions.ClientError as error:
            if create or error.response["Error"]["Code"] not in _DENIED:
                raise
            say(f"note: these credentials may not look for {name}; the push will tell")
            return
    if found is None:
        _create(session, client, ecr, name, create, say)
    elif found["repositories"][0].get("imageTagMutability", "MUTABLE") == "MUTABLE":
        say(f"note: tags of {name} can be overwritten; IMMUTABLE is what ECR offers against that")


def _create(
    session: Any, client: Any, ecr: Ecr, name: str, create: bool, say: Callable[[str], None]
) -> None:
    if not create:
        raise ImageError(
            f"ECR has no repository {name} at {ecr.host}",
            "make it with --create (make push CREATE=1), or name another one with --repository",
        )
    with _explained("asking AWS whose credentials these are", ecr.region):
        account = _client(session, "sts", ecr.region).get_caller_identity()["Account"]
    if account != ecr.account:
        raise ImageError(
            f"the credentials are of account {account} and the registry is of {ecr.account}, where "
            "they can make no repository",
            f"use that account's credentials (AWS_PROFILE), or let it make {name} and allow this "
            "account to push",
        )
    with _explained(f"making the repository {name} at {ecr.host}", ecr.region):
        try:
            client.create_repository(
                repositoryName=name,
                imageTagMutability="IMMUTABLE",
                imageScanningConfiguration={"scanOnPush": True},
            )
            say(f"made the repository {name}: immutable tags, scanned at every push")
        except client.exceptions.RepositoryAlreadyExistsException:
            pass  # somebody else made it in between


def credentials(ecr: Ecr) -> Login:
    """User and password for the registry, good for 12 hours."""
    with _explained(f"asking ECR for leave to push to {ecr.host}", ecr.region):
        answer = _client(_session(), "ecr", ecr.region).get_authorization_token()
    token = answer["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    return Login(user, password)


def _session() -> Any:
    try:
        import boto3
    except ImportError as error:
        raise ImageError(
            f"a push to ECR needs boto3 ({error})", "install it with `make setup`"
        ) from error
    with _explained("reading the AWS configuration", ""):
        return boto3.Session()


def _client(session: Any, service: str, region: str) -> Any:
    from botocore.config import Config

    limits = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    with _explained(f"setting up a client of {service}", region):
        return session.client(service, region_name=region, config=limits)


@contextmanager
def _explained(doing: str, region: str) -> Iterator[None]:
    """What botocore raises in the block becomes one sentence."""
    from botocore import exceptions as aws

    missing = "give some with AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
    try:
        yield
    except (aws.NoCredentialsError, aws.PartialCredentialsError) as error:
        raise ImageError(f"{doing}: no AWS credentials ({error})", missing) from error
    except (aws.ProfileNotFound, aws.ConfigParseError) as error:
        raise ImageError(f"{doing}: {error}", "check AWS_PROFILE and ~/.aws/config") from error
    except (aws.SSOError, aws.CredentialRetrievalError) as error:
        raise ImageError(
            f"{doing}: {error}", "sign in again, such as by `aws sso login`"
        ) from error
    except aws.ClientError as error:
        raise _refusal(doing, error) from error
    except aws.HTTPClientError as error:
        where = f" in {region}" if region else ""
        raise ImageError(
            f"{doing}: AWS cannot be reached{where} ({error})",
            "check the network, the region in --registry, HTTPS_PROXY and AWS_ENDPOINT_URL",
        ) from error
    except aws.BotoCoreError as error:
        raise ImageError(f"{doing}: {error}", "check the AWS configuration") from error


def _refusal(doing: str, error: Any) -> ImageError:
    """What AWS refused and the cure, from an error that it sent."""
    code = error.response.get("Error", {}).get("Code", "")
    said = f"{doing}: {error.response.get('Error', {}).get('Message', '')} ({code})"
    if code in _EXPIRED:
        return ImageError(f"the AWS credentials have expired; {said}", "get new ones, try again")
    if code in _UNKNOWN_KEY:
        return ImageError(f"AWS does not know these credentials; {said}", "check AWS_PROFILE")
    if code in _DENIED:
        page = "docs/how-to/images/ecr.md"
        cure = f"allow {error.operation_name} ({page} lists all), or use another role"
        return ImageError(f"these credentials may not do that; {said}", cure)
    return ImageError(said, "docs/how-to/images/ecr.md says what a push needs")
