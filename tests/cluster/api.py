"""The API server as the tests ask it: plain HTTPS with the administrator's certificate, JSON both ways."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from tests.cluster.pki import Pki

Json = dict[str, Any]


class ApiError(Exception):
    """The API server's refusal."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Api:
    """Requests, each on a connection of its own. OSError where nobody answers."""

    def __init__(self, pki: Pki, host: str, port: int) -> None:
        self._context = ssl.create_default_context(cafile=str(pki.folder / "ca.crt"))
        self._context.load_cert_chain(pki.folder / "admin.crt", pki.folder / "admin.key")
        self._host, self._port = host, port

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        """One request; raises ApiError on a refusal."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": kind})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, text[:500])
        return json.loads(text) if text.startswith("{") else {"text": text}

    def ready(self) -> bool:
        """Whether it serves."""
        try:
            return bool(self.request("GET", "/readyz")["text"] == "ok")
        except (ApiError, http.client.HTTPException):
            return False

    def create(self, path: str, body: Json) -> Json:
        """Create an object; one that is there already stays as it is."""
        try:
            return self.request("POST", path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            return {}

    def find(self, path: str) -> Json | None:
        """An object, None where there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def pods(self) -> list[Json]:
        """All pods."""
        return list(self.request("GET", "/api/v1/pods")["items"])

    def pod(self, namespace: str, name: str) -> Json | None:
        """A pod, None where there is none."""
        return self.find(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def delete_pod(self, namespace: str, name: str, grace: int | None = None) -> None:
        """Delete a pod; a grace of 0 is what `kubectl delete --force` asks for."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1"}
        more = {} if grace is None else {"gracePeriodSeconds": grace}
        self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {**body, **more})
