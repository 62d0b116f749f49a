"""The package index of a CodeArtifact repository.

The token travels in the environment alone: on a command line every user of the machine, and the
failure file, would see it (S08, S09).
"""

from __future__ import annotations

from muster.types.errors import ConfigError, InstallError


def index_variables(arn: str) -> dict[str, str]:
    """pip's variables for the repository. `CODEARTIFACT_AUTH_TOKEN` is among them so that
    masking secrets by name masks the token.

    Raises ConfigError for an ARN of another form, InstallError when no token can be had.
    """
    region, owner, domain, repository = _parse(arn)
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise InstallError(
            "CA_REPOSITORY_ARN is set, but boto3 is not installed here",
            "python -m pip install boto3, or unset CA_REPOSITORY_ARN",
        ) from error
    limits = Config(connect_timeout=10, read_timeout=30, retries={"total_max_attempts": 3})
    try:
        client = boto3.session.Session(region_name=region).client("codeartifact", config=limits)
        token = client.get_authorization_token(domain=domain, domainOwner=owner)
        address = client.get_repository_endpoint(
            domain=domain, domainOwner=owner, repository=repository, format="pypi"
        )
    except (BotoCoreError, ClientError) as error:
        raise InstallError(
            f"no token for CodeArtifact repository {domain}/{repository}: {type(error).__name__}",
            "give the job's role codeartifact:GetAuthorizationToken,"
            " codeartifact:GetRepositoryEndpoint and sts:GetServiceBearerToken",
        ) from error
    secret = str(token["authorizationToken"])
    scheme, _, rest = str(address["repositoryEndpoint"]).partition("://")
    return {
        "PIP_INDEX_URL": f"{scheme}://aws:{secret}@{rest.rstrip('/')}/simple/",
        "CODEARTIFACT_AUTH_TOKEN": secret,
    }


def _parse(arn: str) -> tuple[str, str, str, str]:
    """Region, owner, domain and repository."""
    parts = arn.split(":", 5)
    place = parts[-1].split("/")
    if len(parts) != 6 or parts[2] != "codeartifact" or len(place) != 3 or place[0] != "repository":
        raise ConfigError.of(
            "CA_REPOSITORY_ARN",
            "expected arn:aws:codeartifact:REGION:ACCOUNT:repository/DOMAIN/NAME,"
            f" got {arn[:80]!r}",
            "copy the ARN from the repository's page, or unset the variable",
        )
    return parts[3], parts[4], place[1], place[2]
