# syntax=docker/dockerfile:1
#
# Targets:
#   image  the exporter (default)
#   wheel  the wheel alone:                 docker build --target wheel --output dist .
#   sbom   the CycloneDX bill of materials: docker build --target sbom --output dist .
#
# Everything that is installed is pinned by hash: deploy/image/build.txt builds the wheel, requirements.txt
# runs it, deploy/image/sbom.txt lists it. The same source gives the same wheel, byte for byte.

# ---------------------------------------------------------------- the wheel

FROM python:3.11.14-slim-bookworm AS wheel-build

# Read by the build system: the time of every file in the wheel. 2026-01-01; a release gives its commit's.
ARG SOURCE_DATE_EPOCH=1767225600
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /source
RUN python -m venv /tools
COPY deploy/image/build.txt deploy/image/build.txt
RUN /tools/bin/pip install --require-hashes --only-binary=:all: --requirement deploy/image/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
# The modes of a checkout are its owner's business (umask), the wheel's are not.
RUN chmod -R u=rwX,go=rX . \
    && /tools/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist .

FROM scratch AS wheel
COPY --from=wheel-build /dist /

# ---------------------------------------------------------------- what runs

FROM wheel-build AS install

COPY requirements.txt ./
# Only wheels: nothing is compiled, so there is no compiler to leave behind. The byte code is made by its own
# step, without times in it, because at run time the file system is read-only.
RUN python -m venv --without-pip /opt/kubegpu-exporter \
    && /tools/bin/pip --python /opt/kubegpu-exporter/bin/python install --no-compile --require-hashes \
        --only-binary=:all: --requirement requirements.txt \
    && /tools/bin/pip --python /opt/kubegpu-exporter/bin/python install --no-compile --no-deps --no-index /dist/*.whl \
    && /opt/kubegpu-exporter/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/kubegpu-exporter/lib \
    && chmod -R go-w /opt/kubegpu-exporter

# ---------------------------------------------------------------- the bill of materials

FROM install AS sbom-build

COPY deploy/image/sbom.txt deploy/image/sbom.txt
RUN python -m venv /sbom-tools \
    && /sbom-tools/bin/pip install --require-hashes --only-binary=:all: --requirement deploy/image/sbom.txt \
    && mkdir /sbom \
    && /sbom-tools/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
        --pyproject pyproject.toml --output-file /sbom/kubegpu-exporter.cdx.json \
        /opt/kubegpu-exporter/bin/python

FROM scratch AS sbom
COPY --from=sbom-build /sbom /

# ---------------------------------------------------------------- the image

FROM python:3.11.14-slim-bookworm AS image

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kubegpu-exporter" \
      org.opencontainers.image.description="Prometheus exporter for Kubernetes GPU nodes: who uses each GPU, which pod that is, and what holds GPU memory that nobody owns" \
      org.opencontainers.image.source="https://github.com/kubegpu/kubegpu-exporter" \
      org.opencontainers.image.documentation="https://github.com/kubegpu/kubegpu-exporter/blob/main/docs/install.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.11.14-slim-bookworm" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Owned by root and writable by nobody else. The image's own user is nobody in particular, which is enough for
# `demo` and `describe --url`; reading a node takes uid 0, and the pod says so (docs/privileges.md).
COPY --from=install /opt/kubegpu-exporter /opt/kubegpu-exporter
ENV PATH=/opt/kubegpu-exporter/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

USER 65532:65532
WORKDIR /
EXPOSE 9836
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/kubegpu-exporter/bin/kubegpu-exporter"]
