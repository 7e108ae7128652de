"""Exit with status 0 if the service of this container is ready, else 1: the HEALTHCHECK of the image.

`AIOFLOW_HEALTH` is the URL to request, for services at other ports and for workers with a status page. Without `http://`
or `https://`, both are tried.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Final

READY: Final = "127.0.0.1:8000/v2/health/ready"
_SECONDS: Final = 2.0


def main() -> int:
    """Request the URL and return the exit status."""
    where = os.environ.get("AIOFLOW_HEALTH", READY)
    # The certificate is issued for the name that clients use, and not for the loopback.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    # Without an empty ProxyHandler, the request would be sent to the proxy of the container's environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    reason: Exception | None = None
    for url in [where] if "://" in where else [f"http://{where}", f"https://{where}"]:
        try:
            with opener.open(url, timeout=_SECONDS):
                return 0
        except urllib.error.HTTPError as error:
            reason = error
            break  # the service has answered: it is not ready
        except (OSError, http.client.HTTPException) as error:
            reason = reason or error
    print(f"{where}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
