"""What a registry holds, by its own word: the HTTP API that every registry has.

Source: the OCI distribution specification, and Docker's token authentication.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import ipaddress
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from scripts.images.errors import ImageError
from scripts.images.push_problem import INSECURE

__all__ = ["HUB", "Layer", "Login", "Manifest", "Registry", "is_loopback", "manifest_of", "reached"]

ANSWER_S = 30.0
MOST_BYTES = 4 << 20  # the specification's limit for a manifest
KINDS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
HUB = "docker.io"  # which answers elsewhere, and which engines leave out of names
HUB_API = "registry-1.docker.io"
CERTIFICATES = "/etc/docker/certs.d"  # the engine's own folder for authorities of registries


class Login(NamedTuple):
    """A user of a registry. Prints without the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Registry(NamedTuple):
    """A registry that answers at `base`, such as https://HOST, and who asks it.

    `insecure`: its certificate is not checked, as the engine does not check it either.
    """

    base: str
    login: Login | None
    insecure: bool


class Layer(NamedTuple):
    digest: str
    compressed_bytes: int


class Manifest(NamedTuple):
    """What a tag or digest stands for; `digest` is computed here from what the registry sent."""

    digest: str
    body: Mapping[str, Any]

    @property
    def config(self) -> str:
        """The digest of the image's configuration, "" for an index."""
        return str(self.body.get("config", {}).get("digest", ""))

    @property
    def layers(self) -> tuple[Layer, ...]:
        found = self.body.get("layers", ())
        return tuple(Layer(str(layer["digest"]), int(layer["size"])) for layer in found)

    @property
    def parts(self) -> tuple[str, ...]:
        """The digests of the images of an index."""
        return tuple(str(part["digest"]) for part in self.body.get("manifests", ()))


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def is_loopback(host: str) -> bool:
    """Whether HOST[:PORT] is this machine, which engines reach without TLS."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def reached(host: str, login: Login | None, insecure: bool) -> Registry:
    """The registry at HOST[:PORT], asked once whether it is one.

    `insecure`: as for the engine, TLS without a check of the certificate, else plain HTTP.
    Raises ImageError when nothing, or something else, answers there.
    """
    whys = []
    for scheme in ("https", "http") if insecure else ("https",):
        where = HUB_API if host == HUB else host
        registry = Registry(f"{scheme}://{where}", login, insecure)
        try:
            answer = _ask(registry, "/v2/", {})
        except (OSError, http.client.HTTPException) as error:
            whys.append(f"{scheme}: {getattr(error, 'reason', error)}")
            continue
        if answer.status in (200, 401):
            return registry
        whys.append(f"{scheme}: status {answer.status}")
    if "WRONG_VERSION_NUMBER" in whys[0] and not insecure:
        raise ImageError(f"the registry at {host} speaks plain HTTP, not TLS", INSECURE)
    raise ImageError(
        f"no registry answers at {host} ({'; '.join(whys)})",
        "check --registry, the network and HTTPS_PROXY, and for a private authority SSL_CERT_FILE",
    )


def manifest_of(registry: Registry, repository: str, reference: str) -> Manifest | None:
    """What the registry has under a tag or digest; None when it has nothing.

    Raises ImageError: no access, no answer, or an answer that contradicts itself.
    """
    what = f"{registry.base}/{repository}:{reference}"
    try:
        answer = _allowed(registry, repository, f"/v2/{repository}/manifests/{reference}")
    except (OSError, http.client.HTTPException) as error:
        raise ImageError(
            f"asking {what}: {getattr(error, 'reason', error)}", "check the network and try again"
        ) from error
    if answer.status == 404:
        return None
    if answer.status in (401, 403):
        raise ImageError(
            f"asking {what}: status {answer.status}: this user may not read what it pushes, which "
            "is how a push is verified",
            "allow pulling too (docs/ecr.md has ECR's list), or check REGISTRY_USER and "
            "REGISTRY_PASSWORD",
        )
    if answer.status != 200:
        raise ImageError(f"asking {what}: status {answer.status}", "try again, or ask its owner")
    return _checked(what, reference, answer)


def _checked(what: str, reference: str, answer: _Answer) -> Manifest:
    digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    claims = {answer.headers.get("docker-content-digest", digest)}
    if reference.startswith("sha256:"):
        claims.add(reference)
    if claims != {digest}:
        raise ImageError(
            f"{what} is not what it says: its content is {digest}, the registry calls it "
            f"{', '.join(sorted(claims - {digest}))}",
            "do not use it, and push again under another tag",
        )
    try:
        body = json.loads(answer.body)
    except ValueError as error:
        raise ImageError(
            f"{what}: the answer is no manifest ({error})", "check --registry"
        ) from None
    return Manifest(digest, body)


def _allowed(registry: Registry, repository: str, path: str) -> _Answer:
    """Asks; when the registry wants to know who asks, tells it in the way that it names."""
    headers = {"Accept": ", ".join(KINDS)}
    answer = _ask(registry, path, headers)
    if answer.status != 401:
        return answer
    how, _, rest = answer.headers.get("www-authenticate", "").partition(" ")
    if how.lower() == "bearer":
        token = _token(registry, repository, dict(re.findall(r'(\w+)="([^"]*)"', rest)))
        return _ask(registry, path, {**headers, "Authorization": f"Bearer {token}"})
    if how.lower() == "basic" and registry.login:
        return _ask(registry, path, {**headers, "Authorization": registry.login.basic})
    return answer


def _token(registry: Registry, repository: str, challenge: Mapping[str, str]) -> str:
    """A token of the registry's own authority, for reading this repository."""
    realm = urllib.parse.urlsplit(challenge.get("realm", ""))
    if realm.scheme != "https" and not (realm.scheme == "http" and registry.insecure):
        raise ImageError(
            f"{registry.base} wants the password sent to {realm.geturl() or 'nowhere'}, which is "
            "not https; nothing was sent",
            "ask its owner to mend the registry's settings",
        )
    words = {"service": challenge.get("service", ""), "scope": f"repository:{repository}:pull"}
    there = registry._replace(base=f"{realm.scheme}://{realm.netloc}")
    headers = {"Authorization": registry.login.basic} if registry.login else {}
    answer = _ask(there, f"{realm.path}?{urllib.parse.urlencode(words)}", headers)
    try:
        found = json.loads(answer.body)
        return str(found.get("token") or found["access_token"])
    except (ValueError, KeyError, AttributeError):
        raise ImageError(
            f"{there.base} gives no token for {repository} (status {answer.status})",
            "check REGISTRY_USER and REGISTRY_PASSWORD and that this user may read there",
        ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What we send holds a password, so it goes nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(registry: Registry, path: str, headers: Mapping[str, str]) -> _Answer:
    """One GET. Raises OSError and http.client.HTTPException."""
    host = registry.base.partition("://")[2]
    handlers: list[Any] = [_NoRedirect(), urllib.request.HTTPSHandler(context=_tls(registry, host))]
    if is_loopback(host):
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(registry.base + path, headers=dict(headers))
    try:
        answer = urllib.request.build_opener(*handlers).open(request, timeout=ANSWER_S)
    except urllib.error.HTTPError as refused:
        answer = refused
    with answer:
        body = answer.read(MOST_BYTES)
        return _Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, body)


def _tls(registry: Registry, host: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority = os.path.join(CERTIFICATES, host, "ca.crt")
    if os.path.isfile(authority):
        context.load_verify_locations(authority)
    if registry.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
